"""
How soon one process sees what another one saves: with change notification, where the store has it, and by polling.

The reader watches operations by a manager, in a process of its own for each way. The writer, this process, saves new
stages by `Store.merge` and by `flush_soon` of a manager in turns, at random moments, and into operations in turns, so
that each rests longer than the reader's throttle. The clock is the machine's.
"""

from __future__ import annotations

import json
import random
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, NamedTuple

import trio
from documents import STAGES, seed, stage_of
from harness import Bound, Report, Table
from loads import percentiles, say
from programs import start_program

from timeline_trio import open_manager
from timeline_trio.model import Update
from timeline_trio.store import WatchesChanges, open_store

if TYPE_CHECKING:
    from programs import Program
    from stores_servers import Served

_OPERATIONS = 8
_SHORTEST_REST, _LONGEST_REST = 0.03, 0.06  # seconds between two saves
_GOAL = 20.0  # milliseconds
_PATIENCE = 60.0  # seconds in which a reader must have seen all


class _Way(NamedTuple):
    name: str
    how: str
    interval: float


_LISTENING = _Way("notification", "listen", 1.0)
_POLLING = (_Way("polling each 50 ms", "poll", 0.05), _Way("polling each 1 s", "poll", 1.0))


class _Saves(NamedTuple):
    """
    When each stage was saved, in nanoseconds since the epoch, by its id.
    """

    called: dict[str, int]
    merged: dict[str, int]
    hinted: dict[str, int]


async def measure_latency(served: Served, *, quick: bool) -> Report:
    """
    Measure the latency of one store.
    """
    count = 40 if quick else 300
    opids = [f"latency {number}" for number in range(_OPERATIONS)]
    async with open_store(served.url) as store:
        for opid in opids:
            await seed(store, opid)
        ways = (_LISTENING, *_POLLING) if isinstance(store, WatchesChanges) else _POLLING
    readers: dict[str, Program] = {}
    async with AsyncExitStack() as stack:
        say(f"{served.name}, latency: {count} saves", passing=True)
        for way in ways:
            arguments = (served.url, way.how, str(way.interval), str(STAGES + count), *opids)
            readers[way.name] = await stack.enter_async_context(start_program("latency_program.py", *arguments))
        saves = await _save(served, opids, count)
        with trio.fail_after(_PATIENCE):
            seen = {name: json.loads(await reader.line()) for name, reader in readers.items()}
    say(f"{served.name}, latency: done")
    rows = {
        f"{served.name}, {name}": tuple(
            milliseconds for saved_at in saves for milliseconds in _latencies(saved_at, seen_at)
        )
        for name, seen_at in seen.items()
    }
    columns = tuple(
        f"from {begin}: {figure} ms" for begin in ("merge", "merged", "flush_soon") for figure in ("p50", "p99")
    )
    bounds: list[Bound] = []
    if (row := rows.get(f"{served.name}, {_LISTENING.name}")) is not None:
        name = f"{served.name}: milliseconds to another process's snapshot, p50, "
        bounds += (Bound(f"{name}from merge", row[0], _GOAL), Bound(f"{name}from flush_soon", row[4], _GOAL))
    return Report([Table("from a save to another process's snapshot", columns, rows)], bounds)


async def _save(served: Served, opids: list[str], count: int) -> _Saves:
    saves = _Saves({}, {}, {})
    async with open_store(served.url) as store, open_manager(store) as manager:
        for number in range(STAGES, STAGES + count):
            await trio.sleep(random.uniform(_SHORTEST_REST, _LONGEST_REST))  # noqa: S311 - no secret
            opid, stage = opids[number % len(opids)], stage_of(number, 0)
            if number % 2:
                saves.called[stage.id] = time.time_ns()
                await store.merge(opid, Update(stages=(stage,)))
                saves.merged[stage.id] = time.time_ns()
            else:
                manager.record(opid, stage)
                saves.hinted[stage.id] = time.time_ns()
                manager.flush_soon(opid)
    return saves


def _latencies(saved_at: dict[str, int], seen_at: dict[str, int]) -> tuple[float, float]:
    return percentiles([(seen_at[stage] - saved) / 1e6 for stage, saved in saved_at.items()])
