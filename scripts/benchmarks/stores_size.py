"""
What a save of ten changed stages costs as the operation grows, by a writer that knows what is stored.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from documents import StoreWriter, seed
from harness import Bound, Report, Table
from loads import Load, run_loads, run_on_trio

from timeline_trio.store import open_store

if TYPE_CHECKING:
    from stores_servers import Served

_SIZES = (10, 100, 1_000, 10_000)
_CHANGES = 10
_FLATNESS = 1.5
_MANY, _FEW = 20, 5  # saves in a round: where one takes long, fewer will do


async def measure_sizes(served: Served, *, quick: bool) -> Report:
    """
    Measure the saves of one store.
    """
    rounds = 3 if quick else 15
    async with open_store(served.url_with(1)) as store:
        loads: list[Load] = []
        for size in _SIZES:
            opid = f"size {size}"
            known = await seed(store, opid, size)
            writer = StoreWriter(store, opid, known, range(size), changes=_CHANGES)
            count = _FEW if size == _SIZES[-1] and served.name != "redis" else _MANY
            loads.append(Load(str(size), partial(run_on_trio, [writer.merge], count)))
        results = await run_loads(f"{served.name}, saves by size", loads, rounds)
    samples = [results.median(load.name) for load in loads]
    row: list[float] = []
    columns: list[str] = []
    for what, costs in (
        ("ms", [1e3 / sample.rate for sample in samples]),
        ("CPU ms of the client", [sample.cpu * 1e3 for sample in samples]),
    ):
        columns += (*(f"{what} at {size:,}" for size in _SIZES), f"{what}, last in first")
        row += (*costs, costs[-1] / costs[0])
    bounds: list[Bound] = []
    if served.name == "redis":
        smallest, *larger = (load.name for load in loads)
        greatest = max(results.ratio(smallest, name) for name in larger)
        what = f"redis: a save in up to {_SIZES[-1]:,} stages in one in {smallest}, by the clock"
        bounds.append(Bound(what, greatest, _FLATNESS))
    return Report([Table(f"a save of {_CHANGES} changed stages", tuple(columns), {served.name: tuple(row)})], bounds)
