"""
Tests of the manager for the whole program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

import timeline_trio
from timeline_trio import InvalidValue, NoDefaultManager, NotFound, Status, get_default, open_manager, set_default
from timeline_trio.store import MemoryStore

from .recording import completed, quiet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trio.testing import MockClock


@pytest.fixture(autouse=True)
def _no_default_is_left() -> Iterator[None]:
    yield
    set_default(None)


async def test_without_a_default_every_function_says_so() -> None:
    # parity 3, 67
    for call in (
        get_default,
        lambda: timeline_trio.begin("op", "copy"),
        lambda: timeline_trio.record("op", completed()),
        lambda: timeline_trio.start("op", "job"),
        lambda: timeline_trio.finish("op"),
        lambda: timeline_trio.stage("op", "copy"),
        lambda: timeline_trio.operation("op", "job"),
    ):
        with pytest.raises(NoDefaultManager):
            call()
    with pytest.raises(NoDefaultManager):
        await timeline_trio.end("op", "copy")
    with pytest.raises(NoDefaultManager):
        await timeline_trio.read("op")
    async with open_manager(config=quiet()):
        with pytest.raises(NoDefaultManager):
            get_default()


async def test_the_functions_use_the_default_manager(autojump_clock: MockClock) -> None:
    # parity 3, 29
    async with open_manager(MemoryStore(), config=quiet()) as manager:
        assert set_default(manager) is None
        assert get_default() is manager
        timeline_trio.begin("op", "copy", stage_id="s", attributes={"a": 1})
        timeline_trio.record("op", completed(id="old"))
        with timeline_trio.stage("op", "block"):
            pass
        await timeline_trio.end("op", "copy", "bad", code="7")
        snapshot = await timeline_trio.read("op")
        assert not (snapshot.collection.local_flushed)
        assert not (snapshot.collection.store_read)
        assert snapshot.status is Status.UNKNOWN
        assert snapshot.stage("s").code == "7"  # type: ignore[union-attr]
        timeline_trio.start("op", "job", attributes={"a": 1})
        timeline_trio.finish("op", "bad")
        assert (await manager.read("op")).error == "bad"
        with timeline_trio.operation("other", "job", attributes={"b": 2}) as handle:
            handle.begin("copy")
        snapshot = await timeline_trio.read("other", fresh=False)
        assert (snapshot.status, snapshot.attributes) == (Status.SUCCEEDED, {"b": 2})
        assert set_default(None) is manager
        with pytest.raises(NoDefaultManager):
            timeline_trio.begin("op", "copy")


async def test_handles_stay_with_the_manager_that_made_them(autojump_clock: MockClock) -> None:
    # parity 68
    async with open_manager(config=quiet()) as first, open_manager(config=quiet()) as second:
        set_default(first)
        handle = timeline_trio.begin("op", "copy")
        assert set_default(second) is first
        handle.end()
        single = timeline_trio.new("op")
        single.begin("single")
        with pytest.raises(NotFound):
            await second.read("op")
        assert [stage.status for stage in (await first.read("op")).stages] == [Status.SUCCEEDED]


async def test_each_recording_during_a_swap_lands_in_exactly_one_manager(autojump_clock: MockClock) -> None:
    # parity 69
    async with open_manager(config=quiet()) as first, open_manager(config=quiet()) as second:
        set_default(first)

        def swap() -> None:
            for _ in range(200):
                set_default(second)
                set_default(first)

        def record(number: int) -> None:
            for index in range(50):
                timeline_trio.begin("op", "copy", stage_id=f"{number}-{index}").end()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, swap)
            for number in range(4):
                nursery.start_soon(trio.to_thread.run_sync, record, number)
        found: list[str] = []
        for manager in (first, second):
            try:
                found += [stage.id for stage in (await manager.read("op")).stages]
            except NotFound:
                continue
    assert len(found) == len(set(found)) == 200


@pytest.mark.parametrize("manager", ["x", 5, open_manager])
def test_what_is_no_manager_is_not_installed(manager: Any) -> None:
    with pytest.raises(InvalidValue, match="open_manager") as caught:
        set_default(manager)
    assert caught.value.field == "manager"
    with pytest.raises(NoDefaultManager):
        get_default()
