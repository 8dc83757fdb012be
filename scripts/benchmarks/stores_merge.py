"""
How fast each store merges, beside the same statements sent by the raw driver and by the server's own load tool.

A merge changes one stage of an operation of ten, about 2 KB; each worker has an operation of its own. `known` says that
the writer knows what is stored, as a manager does after its first save, so that one statement does it; `read` that it
is read before. All workers are in one process, with one store, or with one raw connection each.
"""

from __future__ import annotations

import json
import shutil
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from documents import seed
from harness import Bound, Report, Table
from load_tools import run_pgbench, run_redis_benchmark, run_sysbench
from loads import Load, Sample, run_loads, say
from programs import start_program

from timeline_trio.store import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from stores_servers import Served

    Run = Callable[[int, int], Awaitable[Sample]]  # of workers, and of merges

_KNOWN, _READ = "known", "read"
_PARITY = 0.75
_COUNTS = {"sqlite": 800, "mysql": 160, "postgres": 160, "redis": 800}  # merges of a round
_FASTER = 3  # the load tools are, by about so much, and do so many more


class Contender(NamedTuple):
    """
    One way to merge.

    Attributes:
        label: what the report calls it.
        kind: what `merge_program` calls it; "" for a load tool.
        options: of the URL, for a store.
        tool: runs the load tool.
        package: what Debian calls the package of the tool, whose program has the label's name.
    """

    label: str
    kind: str = ""
    options: tuple[tuple[str, str], ...] = ()
    tool: Callable[..., Awaitable[Sample]] | None = None
    package: str = ""


_STORE = Contender("store", "store")
# The second is the peer that all are compared with: the raw driver.
_CONTENDERS = {
    "sqlite": (_STORE, Contender("sqlite3 in threads", "sqlite3")),
    "mysql": (
        _STORE,
        Contender("asyncmy on asyncio", "asyncmy"),
        Contender("sysbench", tool=run_sysbench, package="sysbench"),
    ),
    "postgres": (
        _STORE,
        Contender("psycopg in threads", "psycopg"),
        Contender("asyncpg on asyncio", "asyncpg"),
        Contender("store, telling nobody", "store", options=(("notify", "false"),)),
        Contender("pgbench", tool=run_pgbench, package="postgresql"),
    ),
    "redis": (
        _STORE,
        Contender("coredis on asyncio", "coredis"),
        Contender("redis-benchmark", tool=run_redis_benchmark, package="redis-tools"),
    ),
}
_BASES = {"sqlite": (_KNOWN, _READ), "mysql": (_KNOWN, _READ), "postgres": (_KNOWN, _READ), "redis": (_KNOWN,)}


async def measure_merges(served: Served, *, quick: bool) -> Report:
    """
    Measure the merges of one store.
    """
    numbers = (1, 8) if quick else (1, 4, 8)
    # Short rounds and many: the disk's weather, which is most of a small commit, changes within seconds.
    rounds, count = (3, _COUNTS[served.name] // 2) if quick else (15, _COUNTS[served.name])
    contenders = [each for each in _CONTENDERS[served.name] if each.kind or _is_here(each)]
    peer = contenders[1].label
    bases = {_name(each.label, base): base for base in _BASES[served.name] for each in contenders}
    figures: dict[str, list[float]] = {name: [] for name in bases}
    bounds: list[Bound] = []
    async with AsyncExitStack() as stack:
        runs: dict[str, Run] = {}
        for base in _BASES[served.name]:
            for each in contenders:
                run = await stack.enter_async_context(_running(each, served, base, max(numbers)))
                runs[_name(each.label, base)] = run
        for number in numbers:
            loads = [Load(name, partial(run, number, count)) for name, run in runs.items()]
            results = await run_loads(f"{served.name}, merges by {number}", loads, rounds)
            for name, base in bases.items():
                sample, ratio = results.median(name), results.ratio(name, _name(peer, base))
                figures[name] += (sample.rate, ratio, sample.p50 * 1e3, sample.p99 * 1e3, sample.cpu * 1e6)
                if served.name == "mysql" and name == _name(_STORE.label, base):
                    what = f"mysql: merges/s of {number} by the store, {base}, in those of {peer}"
                    bounds.append(Bound(what, ratio, _PARITY, "at least"))
    columns = [
        f"{number}: {figure}" for number in numbers for figure in ("/s", "in the peer's", "p50 ms", "p99 ms", "CPU µs")
    ]
    title = f"{served.name}: merges by so many workers; the peer is {peer}"
    return Report([Table(title, tuple(columns), {name: tuple(row) for name, row in figures.items()})], bounds)


def _name(label: str, base: str) -> str:
    return f"{label}, {base}"


def _is_here(contender: Contender) -> bool:
    found = shutil.which(contender.label) is not None
    if not found:
        say(f"LEFT OUT: {contender.label} is not on this machine. On Debian: apt-get install {contender.package}")
    return found


@asynccontextmanager
async def _running(contender: Contender, served: Served, base: str, workers: int) -> AsyncGenerator[Run]:
    row = f"{contender.label} {base} "
    opids = [f"{row}{number}" for number in range(workers)]
    async with open_store(served.url) as store:
        for opid in opids:
            await seed(store, opid)
    if contender.tool is not None:
        tool = contender.tool
        yield lambda number, count: tool(served.url, row, number, count * _FASTER, reads=base == _READ)
        return
    url = served.url_with(workers, **dict(contender.options)) if contender.kind == "store" else served.url
    async with start_program("merge_program.py", contender.kind, url, base, *opids) as program:

        async def run(number: int, count: int) -> Sample:
            return Sample(*json.loads(await program.ask(f"{number} {count}")))

        yield run
