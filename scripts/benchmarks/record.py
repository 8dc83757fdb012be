"""
What it costs to record: the CPU of the caller, and the memory of what is not saved yet.

Everything runs inside Trio but without a checkpoint, so the manager's background stands still meanwhile.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import trio
from harness import Bound, Case, Report, Table, interleave
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from peers import open_logger, open_tracer

from timeline_trio import Config, open_manager
from timeline_trio.model import Stage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from harness import Work
    from opentelemetry.trace import Tracer

    from timeline_trio import Manager

# Nothing is refused for want of room, and no period falls due.
ROOMY = Config(
    flush_interval=3600,
    load_interval=3600,
    max_timelines=100_000,
    max_pending_timelines=100_000,
    max_pending_updates=1_000_000,
)

STAGE = "stage: begin, two attributes, end"
BLOCK = "stage: as a with block"
INTERVAL = "stage: a finished interval"
SPAN = "OpenTelemetry: a current span"
LOG = "logging: two lines of JSON"
FEW, MANY = 10, 10_000
GROWN = "stage: in an operation of {:,}"


class Size(NamedTuple):
    """
    How thoroughly to measure.
    """

    rounds: int
    units: int


def measure(*, quick: bool) -> Report:
    """
    Measure recording.
    """
    size = Size(rounds=10, units=500) if quick else Size(rounds=40, units=1_000)
    seconds = trio.run(_measure_time, size)
    kept = trio.run(_measure_memory, size.units)
    few, many = GROWN.format(FEW), GROWN.format(MANY)
    time_table = Table(
        "CPU of the caller",
        ("µs", "spans"),
        {name: (taken * 1e6, taken / seconds[SPAN]) for name, taken in seconds.items()},
    )
    memory_table = Table("kept until it is saved", ("bytes", "objects for the GC"), kept)
    return Report(
        [time_table, memory_table],
        [
            Bound("a stage in spans of OpenTelemetry", seconds[STAGE] / seconds[SPAN], 0.2),
            Bound(f"a stage in an operation of {MANY:,} in stages of one of {FEW}", seconds[many] / seconds[few], 1.2),
        ],
    )


async def _measure_time(size: Size) -> dict[str, float]:
    units = size.units
    cases = [
        Case(STAGE, units, partial(_manager, _stages, units)),
        Case(BLOCK, units, partial(_manager, _blocks, units)),
        Case(INTERVAL, units, partial(_manager, _intervals, units)),
        Case(SPAN, units, partial(_tracer, units)),
        Case(LOG, units, partial(_logger, units)),
        # Each of many small operations grows by its own size, so both cases pay for the growth of dictionaries.
        Case(GROWN.format(FEW), units, partial(_grown, FEW, units // FEW, FEW)),
        Case(GROWN.format(MANY), units, partial(_grown, MANY, 1, units)),
    ]
    return await interleave(cases, size.rounds)


def _stages(manager: Manager, count: int, opid: str = "operation") -> None:
    for number in range(count):
        handle = manager.begin(opid, "stage", attributes={"host": "db-1", "attempt": number})
        handle.end()


def _blocks(manager: Manager, count: int) -> None:
    for number in range(count):
        with manager.stage("operation", "stage", attributes={"host": "db-1", "attempt": number}):
            pass


def _intervals(manager: Manager, count: int) -> None:
    for number in range(count):
        now = time.time_ns()
        attributes = {"host": "db-1", "attempt": number}
        manager.record("operation", Stage.completed("stage", now, now, id=str(number), attributes=attributes))


def _spans(tracer: Tracer, count: int) -> None:
    for number in range(count):
        with tracer.start_as_current_span("stage", attributes={"host": "db-1", "attempt": number}):
            pass


@asynccontextmanager
async def _manager(record: Callable[[Manager, int], None], count: int) -> AsyncGenerator[Work]:
    async with open_manager(config=ROOMY) as manager:

        async def work() -> None:
            record(manager, count)

        yield work


@asynccontextmanager
async def _grown(grown: int, operations: int, count: int) -> AsyncGenerator[Work]:
    async with open_manager(config=ROOMY) as manager:
        opids = [f"operation-{number}" for number in range(operations)]
        for opid in opids:
            _stages(manager, grown, opid)
        await manager.flush_all()  # as such operations are: their stages are not all pending at once
        for opid in opids:
            _stages(manager, 1, opid)  # the first after a save does more than the others

        async def work() -> None:
            for opid in opids:
                _stages(manager, count, opid)

        yield work


@asynccontextmanager
async def _tracer(count: int) -> AsyncGenerator[Work]:
    with open_tracer() as tracer:

        async def work() -> None:
            _spans(tracer, count)

        yield work


@asynccontextmanager
async def _logger(count: int) -> AsyncGenerator[Work]:
    with open_logger() as logger:

        async def work() -> None:
            for number in range(count):
                logger.info("stage begins", extra={"attributes": {"host": "db-1", "attempt": number}})
                logger.info("stage ends")

        yield work


async def _measure_memory(count: int) -> dict[str, tuple[float, float]]:
    async with open_manager(config=ROOMY) as manager:
        stages = _kept(partial(_stages, manager), count)
    with open_tracer(SimpleSpanProcessor(InMemorySpanExporter())) as tracer:
        spans = _kept(partial(_spans, tracer), count)
    return {"an unsaved stage": stages, "a span not yet exported": spans}


def _kept(record: Callable[[int], None], count: int) -> tuple[float, float]:
    """
    Return how many bytes, and how many objects that the garbage collector tracks, each recording leaves behind.
    """
    record(100)  # what is made only once
    tracemalloc.start()
    try:
        gc.collect()
        objects, (size, _) = len(gc.get_objects()), tracemalloc.get_traced_memory()
        record(count)
        gc.collect()
        return (
            (tracemalloc.get_traced_memory()[0] - size) / count,
            (len(gc.get_objects()) - objects) / count,
        )
    finally:
        tracemalloc.stop()
