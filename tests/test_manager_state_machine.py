"""
Generated programs: several managers on one faulty store, in virtual time, judged by a model of plain lists.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import hypothesis.strategies as st
import msgspec
import trio
from hypothesis import given, settings
from trio.testing import MockClock

from timeline_trio import (
    BufferFull,
    Config,
    DrainError,
    FlushError,
    NotFound,
    Stage,
    StageHandle,
    StoreError,
    StoreUnavailable,
    open_manager,
)
from timeline_trio.testing import FaultyStore

from .case_support import NEW_YEAR, SECOND, stored, virtual_time
from .program_model import POISON, Accepted, Ledger, ManagerModel, check_store

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from timeline_trio import Manager
    from timeline_trio.testing import Fault

OPIDS = ("x", "y", "z")
MANAGERS = 3
CONFIG = Config(
    batch_limit=2,
    load_interval=0.1,
    export_timeout=0.4,
    max_pending_updates=5,
    max_pending_timelines=3,
    max_timelines=3,
    clock=virtual_time,
)


class Step(msgspec.Struct, frozen=True):
    """
    One step of a program: what is done, by which manager, to which operation and stage.
    """

    action: str
    manager: int
    opid: str
    stage: str
    seconds: float


RECORDINGS = ("begin", "end", "set_attributes", "record", "poison", "start", "finish")
CALLS = ("flush", "flush_soon", "flush_and_go_on", "evict", "read", "read_fresh", "reopen", "sleep", "sleep")
FAULTS = ("outage", "heal", "strip", "hang", "hang_after", "lose_reply", "lose_joint_reply", "fail_read", "fail_oddly")
DELAYS = ("slow_replies", "slow_reads")


def steps() -> SearchStrategy[Step]:
    """
    Return steps; recordings are the most likely.
    """
    return st.builds(
        Step,
        action=st.sampled_from(RECORDINGS) | st.sampled_from(CALLS) | st.sampled_from(FAULTS + DELAYS + RECORDINGS),
        manager=st.integers(0, MANAGERS - 1),
        opid=st.sampled_from(OPIDS),
        stage=st.sampled_from(("a", "b")),
        seconds=st.sampled_from((0.0, 0.01, 0.1, 0.5, 1.0, 5.0)),
    )


class Place:
    """
    Where a manager lives: opened, closed and opened again, each time with a model of its own.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.model = ManagerModel(world.ledger)
        self.handles: dict[tuple[str, str], StageHandle] = {}
        self._closing = trio.Event()
        self._closed = trio.Event()

    @property
    def manager(self) -> Manager:
        assert self.model.manager is not None
        return self.model.manager

    async def open(self) -> None:
        """
        Open a new manager.
        """
        self.model = ManagerModel(self._world.ledger)
        self._world.models.append(self.model)
        self.handles = {}
        self._closing, self._closed = trio.Event(), trio.Event()
        await self._world.nursery.start(self._live, self.model)

    async def close(self, seconds: float) -> None:
        """
        Close the manager, by a shutdown or by the end of its block.
        """
        if seconds:
            try:
                await self.manager.shutdown(trio.current_time() + seconds)
            except DrainError as error:
                self.model.lost = error.lost
        self._closing.set()
        await self._closed.wait()
        self.model.check_end()

    async def _live(  # noqa: ASYNC114 - it is only started from here
        self, model: ManagerModel, task_status: trio.TaskStatus[None]
    ) -> None:
        config = replace(CONFIG, on_error=model.on_error)
        async with open_manager(self._world.store, config=config, drain_timeout=1) as model.manager:
            task_status.started()
            await self._closing.wait()
        self._closed.set()


class World:
    """
    A store, its faults and some managers on it.
    """

    def __init__(self, nursery: trio.Nursery, *, joint: bool) -> None:
        self.nursery = nursery
        self.ledger = Ledger()
        self.store = FaultyStore(self.ledger, hide_merge_many=not joint)
        self.models: list[ManagerModel] = []
        self.places = [Place(self) for _ in range(MANAGERS)]
        self.faults: list[Fault] = []
        self.number = 0

    async def do(self, step: Step) -> None:
        """
        Do one step, and check everything that must hold at any moment.
        """
        if step.action in DELAYS:
            setattr(self.ledger, step.action, min(step.seconds, 0.1))
        elif step.action in FAULTS:
            self._break(step)
        elif step.action in RECORDINGS:
            self._record(step, self.places[step.manager])
        else:
            await self._call(step, self.places[step.manager])
        for place in self.places:
            place.model.check_counters()

    def _break(self, step: Step) -> None:
        store = self.store
        match step.action:
            case "outage":
                store.outage = StoreUnavailable("", "down")
            case "heal":
                self.heal()
            case "strip":
                store.strip_documents = not store.strip_documents
            case "hang" | "hang_after":
                self.faults.append(store.hang("merge", after=step.action == "hang_after"))
                self.faults.append(store.hang("merge_many", after=step.action == "hang_after"))
            case "lose_reply":
                self.faults.append(store.lose_reply())
            case "lose_joint_reply":
                self.faults.append(store.lose_reply("merge_many"))
            case "fail_read":
                self.faults += [store.fail("read"), store.fail("mget"), store.fail("latest")]
            case _:
                self.faults.append(store.fail("merge", KeyError("odd")))

    def heal(self) -> None:
        """
        Let the store work again.
        """
        self.store.outage = None
        self.ledger.slow_replies = self.ledger.slow_reads = 0
        for fault in self.faults:
            fault.release()

    def _record(self, step: Step, place: Place) -> None:
        self.number += 1
        manager, opid, number = place.manager, step.opid, self.number
        handle = place.handles.get((opid, step.stage))
        before = manager.statistics().accepted_updates
        slot = (step.stage, "stage")
        try:
            match step.action:
                case "end" if handle:
                    handle.end(code=str(number))
                case "set_attributes" if handle:
                    handle.set_attributes({"number": number})
                case "record" | "poison":
                    error = POISON if step.action == "poison" else ""
                    manager.record(opid, _interval(step.stage, number, error))
                case "start":
                    slot = ("", "start")
                    manager.start(opid, str(number))
                case "finish":
                    slot = ("", "finish")
                    manager.finish(opid, str(number))
                case _:
                    attributes = {"number": number}
                    begun = manager.begin(opid, "work", stage_id=step.stage, attributes=attributes)
                    place.handles[opid, step.stage] = begun
        except BufferFull:
            place.model.refused += 1
            assert manager.statistics().accepted_updates == before
            return
        accepted = manager.statistics().accepted_updates - before
        assert accepted in {0, 1}
        if accepted:
            place.model.note(Accepted(number, opid, slot, poison=step.action == "poison"))

    async def _call(self, step: Step, place: Place) -> None:
        manager, model, opid = place.manager, place.model, step.opid
        match step.action:
            case "flush":
                before = self.number + 1
                with suppress(StoreError):
                    await manager.flush(opid)
                    model.note_saved(opid, before, self.number + 1)
            case "flush_soon":
                manager.flush_soon(opid)
            case "flush_and_go_on":
                with trio.move_on_after(step.seconds), suppress(StoreError):
                    await manager.flush(opid)
            case "evict":
                manager.evict(opid)
                model.note_evicted(opid)
            case "read" | "read_fresh":
                with suppress(NotFound, StoreError):
                    model.check_view(await manager.read(opid, fresh=step.action == "read_fresh"))
            case "reopen":
                await place.close(step.seconds)
                await place.open()
            case _:
                await trio.sleep(step.seconds)

    async def end(self) -> None:
        """
        Heal the store, let everybody save and close, and judge what is stored.
        """
        self.heal()
        for place in self.places:
            for _ in range(CONFIG.max_pending_updates):  # each may be a rejection
                with suppress(FlushError):
                    await place.manager.flush_all()
            assert place.manager.statistics().pending_updates == 0, "healed, and yet not saved"
        for place in self.places:
            for opid in OPIDS:
                with suppress(NotFound):
                    snapshot = await place.manager.read(opid, fresh=True)
                    place.model.check_view(snapshot)
                    if snapshot.collection.local_flushed:
                        assert snapshot.document == await stored(self.ledger, opid)
            await place.close(0)
        for opid in OPIDS:
            with suppress(NotFound):
                check_store(await stored(self.ledger, opid), self.models, self.ledger)


def _interval(stage_id: str, number: int, error: str) -> Stage:
    attributes = {"number": number}
    return Stage.completed("work", NEW_YEAR, NEW_YEAR + SECOND, id=stage_id, error=error, attributes=attributes)


async def run_program(program: list[Step], *, joint: bool) -> None:
    """
    Run one program from its first to its last step.
    """
    async with trio.open_nursery() as nursery:
        world = World(nursery, joint=joint)
        for place in world.places:
            await place.open()
        for step in program:
            await world.do(step)
        await world.end()


@settings(max_examples=200)
@given(st.lists(steps(), max_size=60), st.booleans())
def test_no_program_loses_or_bends_what_was_accepted(program: list[Step], joint: bool) -> None:  # noqa: FBT001 - drawn
    async def main() -> None:
        await run_program(program, joint=joint)

    trio.run(main, clock=MockClock(autojump_threshold=0))
