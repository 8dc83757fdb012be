"""
The servers' own load tools, with the statements of the stores: what can be reached without any Python and JSON.

Each works on the rows whose ids are a common beginning and the number of a worker.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import trio
from documents import Writer, whole_document
from loads import Sample, percentiles
from merge_redis import begin
from merge_rows import now_us

from timeline_trio.model import Document, encode_document, merge
from timeline_trio_mysql._statements import REPLACE_UNFOLDED, select_rows
from timeline_trio_mysql._timestamps import stamp_of
from timeline_trio_postgres._dialect import Statements

if TYPE_CHECKING:
    from collections.abc import Iterator

_SYSBENCH_SCRIPT = Path(__file__).with_name("sysbench_merge.lua")
_PGBENCH_SCRIPT = """\
\\if :first
SELECT version, created_at FROM timelines WHERE id = :row || :client_id \\gset
\\set first 0
\\endif
{statements}
\\set version :version + 1
"""
_PGBENCH_ROW = ":row || :client_id"


async def run_sysbench(url: str, row: str, workers: int, count: int, *, reads: bool) -> Sample:
    """
    Run a round of sysbench.
    """
    parts = urlsplit(url)
    output = await _output_of(
        "sysbench",
        str(_SYSBENCH_SCRIPT),
        f"--mysql-host={parts.hostname}",
        f"--mysql-port={parts.port}",
        f"--mysql-user={parts.username}",
        f"--mysql-db={parts.path.removeprefix('/')}",
        f"--threads={workers}",
        f"--events={count}",
        "--time=0",
        "--histogram=on",
        f"--replace={REPLACE_UNFOLDED}",
        f"--select={select_rows(1, folds=True) if reads else ''}",
        f"--payload={_payload()}",
        f"--now={stamp_of(now_us())}",
        f"--row={row}",
        "run",
    )
    (seconds,) = re.findall(r"total time: +([0-9.]+)s", output)
    return Sample(count / float(seconds), *percentiles(list(_histogram(output))))


async def run_pgbench(url: str, row: str, workers: int, count: int, *, reads: bool) -> Sample:
    """
    Run a round of pgbench.
    """
    statements = Statements.of("")
    values = (":payload", ":now", ":now", ":now", _PGBENCH_ROW, ":created_at", ":version")
    wanted = [_with(statements.replace, *values)]
    if reads:
        wanted.insert(0, _with(statements.rows, f"ARRAY[{_PGBENCH_ROW}]"))
    with tempfile.TemporaryDirectory() as folder:
        script = trio.Path(folder) / "merge.sql"
        await script.write_text(_PGBENCH_SCRIPT.format(statements="\n".join(wanted)), encoding="utf-8")
        variables = {"first": 1, "row": row, "payload": _payload(), "now": f"{stamp_of(now_us())}+00"}
        output = await _output_of(
            "pgbench",
            "--no-vacuum",
            "--protocol=prepared",
            f"--client={workers}",
            f"--transactions={count // workers}",
            "--log",
            f"--log-prefix={folder}/log",
            f"--file={script}",
            *(f"--define={name}={value}" for name, value in variables.items()),
            url.replace("postgres:", "postgresql:"),
        )
        latencies = [int(line.split()[2]) / 1e6 for line in _lines_of(folder, "log.*")]
    (rate,) = re.findall(r"tps = ([0-9.]+) \(without initial connection time\)", output)
    return Sample(float(rate), *percentiles(latencies))


async def run_redis_benchmark(url: str, row: str, workers: int, count: int, *, reads: bool) -> Sample:
    """
    Run a round of redis-benchmark. It has one operation for all workers, and never reads.
    """
    del reads
    parts = urlsplit(url)
    opid = f"{row}0"
    _, call = begin(opid, Writer(opid).update())
    arguments = [argument.decode() if isinstance(argument, bytes) else str(argument) for argument in call.arguments]
    # Redis's own number is put in for the one that differs from change to change.
    arguments[-1] = re.sub(r'("attempt":)\d+', r"\g<1>1__rand_int__", arguments[-1])
    output = await _output_of(
        "redis-benchmark",
        *("-h", str(parts.hostname)),
        *("-p", str(parts.port)),
        *("-c", str(workers)),
        *("-n", str(count)),
        *("-r", "1000000000"),
        "--csv",
        *("EVALSHA", call.script.digest, str(len(call.keys)), *call.keys, *arguments),
    )
    # The first column, what was sent, may hold commas and quotes of its own.
    rate, _, _, p50, _, p99, worst = (float(figure.strip('"')) for figure in output.splitlines()[-1].split(",")[-7:])
    return Sample(rate, p50 / 1e3, p99 / 1e3, worst / 1e3)


def _payload() -> str:
    document, _ = merge(Document(opid="operation"), whole_document())
    return encode_document(document)


def _with(statement: bytes, *values: str) -> str:
    first, *rest = statement.decode().split("%s")
    return first + "".join(f"{value}{part}" for value, part in zip(values, rest, strict=True)) + ";"


def _lines_of(folder: str, pattern: str) -> list[str]:
    return [line for file in Path(folder).glob(pattern) for line in file.read_text(encoding="ascii").splitlines()]


def _histogram(output: str) -> Iterator[float]:
    for milliseconds, count in re.findall(r"^ +([0-9.]+) \|.* (\d+)$", output, re.MULTILINE):
        yield from [float(milliseconds) / 1e3] * int(count)


async def _output_of(*command: str) -> str:
    done = await trio.run_process(command, capture_stdout=True)
    return done.stdout.decode()
