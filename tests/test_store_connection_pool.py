"""
Tests of the connection pool, on connections of the tests' own, in virtual time.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from timeline_trio import WrongProcess
from timeline_trio.store import ConnectionPool, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trio.testing import MockClock


class Line:
    """
    A connection.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_sound = True
        self.discarded = 0
        self.said_goodbye = False

    def __repr__(self) -> str:
        return f"Line({self.number})"


class Lost(Exception):
    """
    The other side had hung up.
    """


class Exchange:
    """
    A connector that counts.
    """

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.connect_seconds = 0.0
        self.close_seconds = 0.0
        self.failure: Exception | None = None

    async def connect(self) -> Line:
        await trio.sleep(self.connect_seconds)
        if self.failure:
            raise self.failure
        self.lines.append(Line(len(self.lines)))
        return self.lines[-1]

    def is_sound(self, connection: Line) -> bool:
        return connection.is_sound

    def is_lost(self, error: Exception) -> bool:
        return isinstance(error, Lost)

    def discard(self, connection: Line) -> None:
        connection.discarded += 1

    async def close(self, connection: Line) -> None:
        await trio.sleep(self.close_seconds)
        connection.said_goodbye = True

    @property
    def open(self) -> int:
        return sum(not line.discarded for line in self.lines)


@pytest.fixture
def exchange() -> Exchange:
    return Exchange()


@pytest.fixture
def pool(exchange: Exchange) -> ConnectionPool[Line]:
    return ConnectionPool(exchange, name="the exchange", size=2, connect_timeout=3)


def figures(pool: ConnectionPool[Line]) -> tuple[int, int, int, int]:
    counts = pool.statistics()
    return counts.open, counts.idle, counts.waiting, counts.discarded


async def talk(line: Line) -> int:
    await trio.sleep(1)
    return line.number


def talking_on(used: list[int]) -> Callable[[Line], Awaitable[None]]:
    async def work(line: Line) -> None:
        used.append(await talk(line))

    return work


async def test_no_more_connections_are_open_than_the_size(
    exchange: Exchange, pool: ConnectionPool[Line], autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(9):
            nursery.start_soon(pool.run, talk)
        await wait_all_tasks_blocked()
        assert figures(pool) == (2, 0, 7, 0)
    assert len(exchange.lines) == 2
    assert figures(pool) == (2, 2, 0, 0)
    assert trio.current_time() == pytest.approx(5)


async def test_who_came_first_is_served_first(exchange: Exchange, autojump_clock: MockClock) -> None:
    pool = ConnectionPool(exchange, name="the exchange", size=1, connect_timeout=3)
    served: list[int] = []

    async def call(number: int) -> None:
        async def work(line: Line) -> None:
            served.append(number)
            await talk(line)

        await pool.run(work)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(call, number)
            await wait_all_tasks_blocked()
    assert served == list(range(8))


async def test_the_connection_that_was_used_last_is_used_next(
    pool: ConnectionPool[Line], autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.run, talk)
        await wait_all_tasks_blocked()
        await trio.sleep(0.5)
        nursery.start_soon(pool.run, talk)
    used: list[int] = []
    for _ in range(3):
        await pool.run(talking_on(used))
    assert used == [1, 1, 1]


async def test_cancelled_use_drops_its_connection_and_hands_its_place_on(
    exchange: Exchange, pool: ConnectionPool[Line], autojump_clock: MockClock
) -> None:
    with trio.move_on_after(0.5):
        await pool.run(talk)
    assert exchange.lines[0].discarded == 1
    assert figures(pool) == (0, 0, 0, 1)
    assert await pool.run(talk) == 1


async def test_cancelled_waiting_leaves_the_line(pool: ConnectionPool[Line], autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(pool.run, talk)
        await wait_all_tasks_blocked()
        with trio.move_on_after(0.5):
            await pool.run(talk)
        assert figures(pool) == (2, 0, 0, 0)
    assert figures(pool) == (2, 2, 0, 0)


async def test_cancelled_or_failed_connecting_leaves_the_count_right(
    exchange: Exchange, pool: ConnectionPool[Line], autojump_clock: MockClock
) -> None:
    exchange.connect_seconds = 2
    with trio.move_on_after(1):
        await pool.run(talk)
    assert figures(pool) == (0, 0, 0, 0)
    exchange.failure = StoreUnavailable("", "engaged")
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="engaged"):
            await pool.run(talk)
    assert figures(pool) == (0, 0, 0, 0)
    exchange.failure = None
    assert await pool.run(talk) == 0


async def test_slow_connecting_fails_by_the_timeout_and_holds_up_nobody_else(
    exchange: Exchange, pool: ConnectionPool[Line], autojump_clock: MockClock
) -> None:
    await pool.run(talk)
    exchange.connect_seconds = 9
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.run, talk)
        await wait_all_tasks_blocked()
        with pytest.raises(StoreUnavailable, match="the exchange did not accept a connection within 3 s") as caught:
            await pool.run(talk)
    assert isinstance(caught.value.__cause__, trio.TooSlowError)
    assert trio.current_time() == pytest.approx(4)
    assert figures(pool) == (1, 1, 0, 0)


async def test_unsound_connection_is_not_used_again(
    exchange: Exchange, pool: ConnectionPool[Line], autojump_clock: MockClock
) -> None:
    async def fail(line: Line) -> None:
        await trio.lowlevel.checkpoint()
        line.is_sound = line.number == 1
        raise ValueError("no")

    for expected in ((0, 0, 0, 1), (1, 1, 0, 1)):
        with pytest.raises(ValueError, match="no"):
            await pool.run(fail)
        assert figures(pool) == expected
    exchange.lines[1].is_sound = False
    assert await pool.run(talk) == 2, "it broke while it was idle"
    assert figures(pool) == (1, 1, 0, 2)
    assert [line.discarded for line in exchange.lines] == [1, 1, 0]


async def test_connection_that_was_lost_while_idle_is_replaced_once_with_all_that_are_as_old(
    exchange: Exchange, pool: ConnectionPool[Line], autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(pool.run, talk)
    used: list[int] = []

    async def work(line: Line) -> str:
        await trio.lowlevel.checkpoint()
        used.append(line.number)
        if line.number < 2:
            line.is_sound = False
            raise Lost
        return "done"

    assert await pool.run(work) == "done"
    assert len(used) == 2
    assert used[1] == 2
    assert figures(pool) == (1, 1, 0, 2)
    assert exchange.open == 1


async def test_connection_that_was_lost_at_once_is_not_tried_again(
    exchange: Exchange, pool: ConnectionPool[Line], autojump_clock: MockClock
) -> None:
    async def work(line: Line) -> None:
        await trio.lowlevel.checkpoint()
        line.is_sound = False
        raise Lost

    with pytest.raises(Lost):
        await pool.run(work)
    assert len(exchange.lines) == 1
    await pool.run(talk)
    with pytest.raises(Lost):
        await pool.run(work)
    assert len(exchange.lines) == 3


async def test_connection_that_lay_idle_for_long_is_not_used(
    exchange: Exchange, pool: ConnectionPool[Line], autojump_clock: MockClock
) -> None:
    await pool.run(talk)
    await trio.sleep(299)
    assert await pool.run(talk) == 0
    await trio.sleep(301)
    assert await pool.run(talk) == 1
    assert exchange.open == 1


async def test_closing_takes_leave_and_refuses_what_comes_later(
    exchange: Exchange, pool: ConnectionPool[Line], autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(pool.run, talk)
        await wait_all_tasks_blocked()
        nursery.start_soon(pool.run, talk)  # it is in line when the pool closes
    await pool.aclose()
    await pool.aclose()
    assert pool.closed
    assert all(line.said_goodbye and line.discarded == 1 for line in exchange.lines)
    assert figures(pool) == (0, 0, 0, 0)
    assert "closed" in repr(pool)
    with pytest.raises(StoreUnavailable, match="the store of the exchange is closed"):
        await pool.run(talk)


async def test_connection_in_use_while_the_pool_closes_is_dropped_at_once(
    exchange: Exchange, pool: ConnectionPool[Line], autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.run, talk)
        await wait_all_tasks_blocked()
        await pool.aclose()
        assert figures(pool) == (0, 0, 0, 1)
        assert exchange.lines[0].discarded == 1
    assert figures(pool) == (0, 0, 0, 1)
    assert exchange.lines[0].discarded == 1
    assert not exchange.lines[0].said_goodbye


async def test_connection_that_opens_while_the_pool_closes_is_dropped_unused(
    exchange: Exchange, pool: ConnectionPool[Line], autojump_clock: MockClock
) -> None:
    exchange.connect_seconds = 1
    refused: list[StoreUnavailable] = []

    async def run() -> None:
        try:
            await pool.run(talk)
        except StoreUnavailable as error:
            refused.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await wait_all_tasks_blocked()
        await pool.aclose()
    assert [str(error) for error in refused] == ["the store of the exchange is closed"]
    assert exchange.open == 0
    assert figures(pool)[:2] == (0, 0)


@pytest.mark.parametrize("patience", [0, 1, 60])
async def test_closing_drops_everything_whoever_does_not_answer(
    exchange: Exchange, pool: ConnectionPool[Line], autojump_clock: MockClock, patience: float
) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(pool.run, talk)
    exchange.close_seconds = 1_000
    began = trio.current_time()
    with trio.move_on_after(patience):
        await pool.aclose()
    assert trio.current_time() - began == pytest.approx(min(patience, 2))
    assert exchange.open == 0
    assert figures(pool) == (0, 0, 0, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_forked_child_leaves_its_parents_connections_alone(
    exchange: Exchange, pool: ConnectionPool[Line], autojump_clock: MockClock
) -> None:
    await pool.run(talk)
    child = os.fork()
    if child == 0:  # pragma: no cover - in the child, which must not go on with the tests
        status = 1
        try:
            with pytest.raises(WrongProcess):
                await pool.run(talk)
            pool.aclose().send(None)  # by hand: a library that was imported may have cleared Trio's state in the child
            status = 2 * (not pool.foreign) or 3 * (exchange.open != 1)
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)  # noqa: ASYNC222 - it ends at once
    assert os.waitstatus_to_exitcode(status) == 0
    assert not pool.foreign
    assert await pool.run(talk) == 0
