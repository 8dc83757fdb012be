"""
What a save round gains from `merge_many`: 64 operations in one call against 64 single merges.

As in `stores_merge`, a merge changes one stage of an operation of ten.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, cast

from documents import StoreWriter, seed
from harness import Bound, Report, Table
from loads import Load, Sample, Stopwatch, run_loads

from timeline_trio.store import MergesMany, open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stores_servers import Served

_OPERATIONS = 64
_GAIN = 2.5


async def measure_rounds(served: Served, *, quick: bool) -> Report:
    """
    Measure the rounds of one store.
    """
    rounds = 5 if quick else 20
    rows: dict[str, tuple[float, ...]] = {}
    bounds: list[Bound] = []
    async with open_store(served.url_with(1)) as store:
        for base in ("known", "read"):
            writers: list[StoreWriter] = []
            for number in range(_OPERATIONS):
                opid = f"round {base} {number:02}"
                known = await seed(store, opid)
                writers.append(StoreWriter(store, opid, known if base == "known" else None))
            single, joint = (
                Load("single", partial(_merge_singly, writers)),
                Load("joint", partial(_merge_jointly, cast("MergesMany", store), writers)),
            )
            results = await run_loads(f"{served.name}, rounds of {_OPERATIONS}, {base}", [single, joint], rounds)
            gain = results.ratio("joint", "single")
            alone, together = results.median("single"), results.median("joint")
            rows[f"{served.name}, {base}"] = (alone.rate, together.rate, gain, alone.cpu * 1e6, together.cpu * 1e6)
            if served.name == "mysql":
                what = f"mysql: merges/s in rounds of {_OPERATIONS}, {base}, in those of single ones"
                bounds.append(Bound(what, gain, _GAIN, "at least"))
    columns = ("single: /s", "joint: /s", "joint in single", "single: CPU µs", "joint: CPU µs")
    return Report([Table(f"merges in rounds of {_OPERATIONS}", columns, rows)], bounds)


async def _merge_singly(writers: Sequence[StoreWriter]) -> Sample:
    watch = Stopwatch()
    for writer in writers:
        await watch.repeat(writer.merge, iter(range(1)))
    return watch.sample()


async def _merge_jointly(store: MergesMany, writers: Sequence[StoreWriter]) -> Sample:
    began, cpu = time.perf_counter(), time.process_time()
    answers = await store.merge_many([writer.request() for writer in writers])
    for writer, answer in zip(writers, answers, strict=True):
        writer.note(answer)
    seconds = time.perf_counter() - began
    return Sample(len(writers) / seconds, worst=seconds, cpu=(time.process_time() - cpu) / len(writers))
