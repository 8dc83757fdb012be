"""
The stores that several machines share, and SQLite beside them.

Each question is a module of its own; each is asked of every store, and its tables are joined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from foreign import ForeignLoad
from harness import Bound, Report, Table
from stores_contention import measure_contention
from stores_latency import measure_latency
from stores_merge import measure_merges
from stores_round import measure_rounds
from stores_servers import start_stores
from stores_size import measure_sizes

if TYPE_CHECKING:
    from stores_servers import Served

_QUESTIONS = {
    "merges": measure_merges,
    "rounds": measure_rounds,
    "contention": measure_contention,
    "sizes": measure_sizes,
    "latency": measure_latency,
}


def measure(*, quick: bool) -> Report:
    """
    Measure the stores.
    """
    with start_stores() as (stores, missing):
        report = trio.run(_measure, stores, quick)
    return Report(report.tables, [Bound("stores without a server here", len(missing), 0), *report.bounds])


async def _measure(stores: list[Served], quick: bool) -> Report:  # noqa: FBT001 - trio.run passes on by position
    tables: dict[tuple[str, tuple[str, ...]], dict[str, tuple[float, ...]]] = {}
    bounds: list[Bound] = []
    cores: dict[str, list[float]] = {served.name: [] for served in stores}
    for ask in _QUESTIONS.values():
        for served in stores:
            foreign = ForeignLoad()
            report = await ask(served, quick=quick)
            cores[served.name].append(foreign.cores())
            bounds += report.bounds
            for table in report.tables:
                tables.setdefault((table.title, table.columns), {}).update(table.rows)
    joined = [Table(title, columns, rows) for (title, columns), rows in tables.items()]
    others = Table("cores used by others", tuple(_QUESTIONS), {name: tuple(used) for name, used in cores.items()})
    return Report([*joined, others], bounds)
