"""
What it costs when everybody writes to one operation: 16 writers on one row against the same on 16 rows.

Each writer changes a stage of its own in operations of 16. In `known` it knows what its own last merge answered, as a
manager does, which on the one row is mostly out of date: there it costs the read that it saves on rows apart. In `read`
it knows nothing. Each has a store of its own with one connection, as instances have, though all are in this process; or
all use `one store`, with as many connections, as managers of one process may.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from documents import StoreWriter, seed
from harness import Bound, Report, Table
from loads import Load, run_loads, run_on_trio

from timeline_trio.store import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stores_servers import Served

    from timeline_trio.store import Store

_WRITERS = 16
_SHARE = 0.5
_PATIENCE = 1.0  # seconds


class _Counters(Protocol):
    merges: int
    attempts: int


class _Counting(Protocol):
    def statistics(self) -> _Counters: ...


async def measure_contention(served: Served, *, quick: bool) -> Report:
    """
    Measure the contention for one row of one store.
    """
    rounds, count = (3, 160) if quick else (10, 640)
    rows: dict[str, tuple[float, ...]] = {}
    bounds: list[Bound] = []
    async with AsyncExitStack() as stack:
        single = await stack.enter_async_context(open_store(served.url_with(_WRITERS)))
        several = [await stack.enter_async_context(open_store(served.url_with(1))) for _ in range(_WRITERS)]
        for case, base, stores in (
            ("known", "known", several),
            ("read", "read", several),
            ("one store, known", "known", [single] * _WRITERS),
        ):
            hot = await _writers(stores, [f"hot {case}"] * _WRITERS, base)
            apart = await _writers(stores, [f"apart {case} {number}" for number in range(_WRITERS)], base)
            loads = [
                Load("hot", partial(run_on_trio, [writer.merge for writer in hot], count)),
                Load("apart", partial(run_on_trio, [writer.merge for writer in apart], count)),
            ]
            before = _counted(stores)
            results = await run_loads(f"{served.name}, {_WRITERS} writers, {case}", loads, rounds)
            merges, attempts = (now - then for now, then in zip(_counted(stores), before, strict=True))
            tries = 1 + 2 * (attempts - merges) / merges  # half of the merges are on rows of their own, of one try
            one, many = results.median("hot"), results.median("apart")
            share, worst = results.ratio("hot", "apart"), results.worst("hot")
            rows[f"{served.name}, {case}"] = (
                *(many.rate, one.rate, share, tries),
                *(one.p50 * 1e3, one.p99 * 1e3, worst * 1e3, many.p99 * 1e3),
            )
            what = f"{served.name}: {_WRITERS} writers on one row, {case}"
            bounds.append(Bound(f"{what}, in the rate of {_WRITERS} rows", share, _SHARE, "at least"))
            bounds.append(Bound(f"{what}, worst wait in seconds", worst, _PATIENCE))
    columns = (
        *(f"{_WRITERS} rows: /s", "one row: /s", "one in many", "tries a merge"),
        *("p50 ms", "p99 ms", "worst ms", f"{_WRITERS} rows: p99 ms"),
    )
    return Report([Table(f"{_WRITERS} writers on one row", columns, rows)], bounds)


async def _writers(stores: Sequence[Store], opids: Sequence[str], base: str) -> list[StoreWriter]:
    known = {opid: await seed(stores[0], opid, len(stores)) for opid in dict.fromkeys(opids)}
    return [
        StoreWriter(store, opid, known[opid] if base == "known" else None, [number])
        for number, (store, opid) in enumerate(zip(stores, opids, strict=True))
    ]


def _counted(stores: Sequence[Store]) -> tuple[int, int]:
    counters = [cast("_Counting", store).statistics() for store in dict.fromkeys(stores)]
    return sum(each.merges for each in counters), sum(each.attempts for each in counters)
