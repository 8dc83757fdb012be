"""
The manager: what an application talks to.

Recording is synchronous and local; it goes through the recorder into the cache. Two background tasks exchange the
cache with the Store. Everything asynchronous here decides first and waits then.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from math import isnan
from typing import TYPE_CHECKING, final

import trio
from trio.lowlevel import enable_ki_protection

from .._errors import (
    AmbiguousStage,
    CorruptEntry,
    DrainError,
    FlushError,
    InvalidValue,
    ManagerClosed,
    NotFound,
    StageNotFound,
    StoreError,
    StoreRejected,
    StoreUnavailable,
)
from .._model._snapshot import Snapshot
from .._model._text import check_opid
from .._model._values import Actor, Stage, StageRef, check_actor
from .._model._wire import Collection
from .._record._beginner import Beginner
from .._record._blocks import OperationBlock, StageBlock
from .._record._handles import StageHandle
from .._record._operation_handle import Handle
from .._record._recorder import Recorder
from ._home import Home
from ._statistics import Statistics
from ._watch import Snapshots, Until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from datetime import datetime

    from .._cache._entry import Entry
    from .._record._recorder import Parent
    from .._store._contract import Store
    from ._background import Background
    from ._config import Config


@final
class Manager(Beginner):
    """
    Records into a cache, and exchanges the cache with a Store in the background. Made by `open_manager`.

    Recording, handles, blocks, `flush_soon`, `evict` and `statistics` may be used from any thread; all else on the
    Trio thread that the manager was opened in.
    """

    def __init__(self, store: Store, config: Config, background: Background) -> None:
        """
        Not to be called: use `open_manager`.
        """
        self._config = config
        self._store = store
        self._background = background
        self._cache = background.cache
        self._home = Home()
        recorder = Recorder(
            background.cache,
            actor=config.actor,
            clock=config.clock,
            new_id=config.new_id,
            max_fact_bytes=config.max_fact_bytes,
            redact=config.redact,
            report=background.reporter.report,
        )
        super().__init__(recorder)

    def __repr__(self) -> str:
        cached, pending = self._cache.counts
        state = "closed" if self._cache.is_closed else "open"
        return f"<Manager {state}, {cached} timelines, {pending} of them pending, on {self._store!r}>"

    @property
    def config(self) -> Config:
        """
        The options that the manager was opened with.
        """
        return self._config

    def stage(
        self,
        opid: str,
        name: str,
        *,
        stage_id: str | None = None,
        parent: Parent = None,
        actor: Actor | None = None,
        attributes: Mapping[str, object] | None = None,
    ) -> StageBlock:
        """
        Return a block, for `with`, that is a stage: how it is left is the stage's result.

        The block never raises by itself: what is refused is counted and goes to `on_error`, and the handle that the
        block yields is then inert. Arguments are those of `begin`.
        """
        return StageBlock(
            self._recorder, self.begin, opid, name, stage_id=stage_id, parent=parent, actor=actor, attributes=attributes
        )

    def operation(
        self, opid: str, name: str, *, attributes: Mapping[str, object] | None = None
    ) -> OperationBlock[Handle]:
        """
        Return a block, for `with`, that starts the operation and finishes it, for everybody; it yields a `Handle`.

        It is for the one instance that owns the operation. Like `stage`, it never raises by itself.
        """
        return OperationBlock(
            self._recorder, opid, name, attributes, lambda: Handle(opid, self._recorder, self.begin, self)
        )

    def record(self, opid: str, stage: Stage) -> None:
        """
        Record a finished interval that was measured elsewhere, as it is given; see `Stage.completed`.

        Raises:
            InvalidStage: naming the field; nothing was accepted.
            InvalidAttribute: naming the key; nothing was accepted.
            InvalidValue: what the opid breaks, or the stage is too large; nothing was accepted.
            BufferFull, ManagerClosed, WrongProcess: as `begin`.
        """
        self._recorder.record(opid, stage)

    def start(
        self,
        opid: str,
        name: str,
        *,
        at: int | datetime | None = None,
        attributes: Mapping[str, object] | None = None,
    ) -> None:
        """
        Record the operation's start.

        Left to be now, a start that says what the stored one says already keeps the stored time, so a restarted
        process may repeat it; until the stored one is loaded or saved onto, this process shows its own. A start with
        a time replaces name, time and attributes together.

        Args:
            opid: the operation.
            name: what it is called.
            at: nanoseconds since the epoch or an aware `datetime`; now if left out.
            attributes: name to JSON value.

        Raises:
            InvalidValue, BufferFull, ManagerClosed, WrongProcess: as `begin`.
        """
        self._recorder.start(opid, name, at=at, attributes=attributes)

    def finish(self, opid: str, error: BaseException | str | None = None, *, at: int | datetime | None = None) -> None:
        """
        Record the operation's finish, for everybody. It ends no stage, and stages may still come.

        Left to be now, a finish that says what the stored one says already keeps the stored time.

        Args:
            opid: the operation.
            error: None if it succeeded, else what it failed or was canceled with; see `outcome_of`.
            at: nanoseconds since the epoch or an aware `datetime`; now if left out.

        Raises:
            InvalidValue, BufferFull, ManagerClosed, WrongProcess: as `begin`.
        """
        self._recorder.finish(opid, error, at=at)

    async def end(
        self,
        opid: str,
        name: str,
        error: BaseException | str | None = None,
        *,
        actor: Actor | None = None,
        code: str = "",
        ended_at: int | datetime | None = None,
        attributes: Mapping[str, object] | None = None,
    ) -> None:
        """
        End the one running stage of that name and actor; `actor` is `Config.actor` if left out.

        Stages that were begun in this process come first; only if there is none is the Store asked. Cancelled, it
        has done nothing.

        Raises:
            StageNotFound: no such stage runs.
            AmbiguousStage: several do; nothing was ended.
            StoreError: none runs here, and the Store could not be asked.
            WrongThread: this is not the Trio run that the manager was opened in.
            InvalidValue, BufferFull, ManagerClosed, WrongProcess: as `begin`.
        """
        self._home.check_run()
        await trio.lowlevel.checkpoint_if_cancelled()
        check_opid(opid)
        if actor is not None:
            check_actor(actor)
        actor_key = (self._config.actor if actor is None else actor).key
        if self._end_live(opid, name, actor_key, error, code, ended_at, attributes):
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        failure = await self._background.fetch(opid, fresh=True)
        while not self._end_live(opid, name, actor_key, error, code, ended_at, attributes):
            running = self._cache.running_named(opid, name, actor_key)
            if not running and failure is not None and not isinstance(failure, NotFound):
                raise self._read_error(opid, failure)
            stage = _the_one(opid, name, actor_key, running)
            if self._recorder.end_stage(opid, stage, error, code, ended_at, attributes):
                return

    def _end_live(
        self,
        opid: str,
        name: str,
        actor_key: str,
        error: BaseException | str | None,
        code: str,
        ended_at: int | datetime | None,
        attributes: Mapping[str, object] | None,
    ) -> bool:
        live = self._cache.live_named(opid, name, actor_key)
        if not live:
            return False
        stages = [each.begun for each in live if each.begun is not None]
        chosen = _the_one(opid, name, actor_key, stages)
        handle = live[stages.index(chosen)]
        assert isinstance(handle, StageHandle)
        handle.end(error, code=code, ended_at=ended_at, attributes=attributes)
        return True

    async def read(self, opid: str, *, fresh: bool = False) -> Snapshot:
        """
        Return the operation as this process sees it.

        Without `fresh`, what is cached is returned at once, once the Store has been asked for it; it is then brought
        up to date in the background. With `fresh`, the Store is asked anew, by a read that starts after this call.
        Readers share reads: a cancelled one leaves alone. It neither publishes anything nor sees what others have
        not saved. `collection.store_read` tells whether the Store answered this very call.

        Raises:
            NotFound: neither this process nor the Store knows the operation.
            StoreError: the Store failed. With `fresh` its `snapshot` is what this process knows itself; without,
                it is raised only where that is nothing.
            InvalidValue: what the opid breaks.
            WrongThread, WrongProcess: as `end`.
        """
        self._home.check_run()
        check_opid(opid)
        entry = self._cache.touch(opid)
        if entry is not None and entry.is_empty:  # only watched so far
            entry = None
        if entry is not None and not fresh:
            recently = trio.current_time() - self._config.load_interval
            if entry.asked or (entry.has_local_facts and entry.missed_at > recently):
                await trio.lowlevel.checkpoint()
                self._background.loader.offer(opid)
                return self._capture(entry)
        failure = await self._background.fetch(opid, fresh=fresh)
        entry = self._cache.touch(opid)
        if entry is None or entry.is_empty:
            if isinstance(failure, NotFound):
                raise NotFound(opid) from failure
            if failure is None:
                raise AssertionError("a document was read and is nowhere")
            raise self._read_error(opid, failure)
        if failure is None:
            return self._capture(entry, store_read=True)
        if fresh and not isinstance(failure, NotFound):
            raise self._read_error(opid, failure, self._capture(entry))
        return self._capture(entry)

    @staticmethod
    def _read_error(opid: str, failure: Exception, snapshot: Snapshot | None = None) -> StoreError:
        return store_error(opid, failure, "the store could not be read", snapshot)

    def _capture(self, entry: Entry, *, store_read: bool = False) -> Snapshot:
        document, flushed = self._cache.view(entry)
        return Snapshot(document, self._config.clock(), Collection(local_flushed=flushed, store_read=store_read))

    def flush_soon(self, opid: str) -> None:
        """
        Have the operation saved at the next opportunity, and return at once. From any thread.

        Raises:
            InvalidValue: what the opid breaks.
            WrongProcess: this process was forked from the manager's.
        """
        self._home.check_process()
        check_opid(opid)
        self._background.hint_save(opid)

    async def flush(self, opid: str) -> None:
        """
        Wait until everything recorded of the operation before this call is saved.

        Cancelled, it leaves the save to the background.

        Raises:
            StoreUnavailable: a try to save failed meanwhile. The background goes on trying.
            StoreRejected: the Store refused an update for good; it is lost.
            StoreError: the Store failed in a way that it does not declare; the background goes on trying.
            ManagerClosed: the manager closed before it was saved.
            InvalidValue: what the opid breaks.
            WrongThread, WrongProcess: as `end`.
        """
        self._home.check_run()
        await trio.lowlevel.checkpoint_if_cancelled()
        check_opid(opid)
        waiter = self._background.saver.add_waiter(opid)
        if waiter is None:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        try:
            await waiter.done.wait()
        finally:
            self._background.saver.remove_waiter(opid, waiter)
        if isinstance(waiter.error, ManagerClosed):
            raise ManagerClosed
        if waiter.error is not None:
            raise store_error(opid, waiter.error, "the store could not save")

    async def flush_all(self) -> None:
        """
        Wait until everything recorded before this call is saved.

        Raises:
            FlushError: some operations could not be saved; `causes` tells why, by opid.
            ManagerClosed: the manager closed before everything was saved.
            WrongThread, WrongProcess: as `end`.
        """
        self._home.check_run()
        await trio.lowlevel.checkpoint_if_cancelled()
        waiters = {
            opid: waiter for opid in self._cache.dirty_opids() if (waiter := self._background.saver.add_waiter(opid))
        }
        if not waiters:
            await trio.lowlevel.cancel_shielded_checkpoint()
        try:
            for waiter in waiters.values():
                await waiter.done.wait()
        finally:
            for opid, waiter in waiters.items():
                self._background.saver.remove_waiter(opid, waiter)
        errors = {opid: waiter.error for opid, waiter in waiters.items() if waiter.error is not None}
        if any(isinstance(error, ManagerClosed) for error in errors.values()):
            raise ManagerClosed
        if errors:
            raise FlushError(
                {opid: store_error(opid, error, "the store could not save") for opid, error in errors.items()}
            )

    def evict(self, opid: str) -> None:
        """
        Free the local copy of the operation, after a final save of what is not saved yet. From any thread.

        It decides nothing about the operation; handles stay usable. A watched operation stays.

        Raises:
            InvalidValue: what the opid breaks.
            WrongProcess: this process was forked from the manager's.
        """
        check_opid(opid)
        self._cache.evict(opid)

    def writer(self, opid: str, actor: Actor | None = None) -> Handle:
        """
        Return a `Handle` on one operation that uses this manager's cache and tasks.

        Args:
            opid: the operation.
            actor: who executes what the handle begins; `Config.actor` if left out.

        Raises:
            InvalidValue: naming the field.
            ManagerClosed: the manager is closed.
            WrongProcess: this process was forked from the manager's.
        """
        self._home.check_process()
        check_opid(opid)
        if self._cache.is_closed:
            raise ManagerClosed
        recorder = self._recorder.acting_as(self._config.actor if actor is None else actor)
        return Handle(opid, recorder, Beginner(recorder).begin, self)

    @asynccontextmanager
    async def watch(self, opid: str, until: Until | None = None) -> AsyncGenerator[Snapshots]:
        """
        Watch an operation, known or not: an async context manager of an iterator over snapshots.

        The iterator yields what is known already, then the newest view after each change. The operation stays in
        the cache meanwhile, and is loaded every `load_interval`.

        Args:
            opid: the operation.
            until: when to end: "finished" with the first snapshot that has a finish, "settled" with the first that
                has a finish and no running stage. It ends with the manager in any case.

        Raises:
            InvalidValue: naming the field.
            WrongThread, WrongProcess: as `end`.
        """
        self._home.check_run()
        check_opid(opid)
        if until not in {None, "finished", "settled"}:
            raise InvalidValue("until", f"expected 'finished', 'settled' or None, got {until!r}")
        entry = self._cache.pin(opid)
        stream = Snapshots(entry, self._capture, until)
        self._cache.watch(entry, stream.notify)
        self._background.add_stream(opid, stream)
        try:
            await trio.lowlevel.checkpoint()
            yield stream
        finally:
            self._background.remove_stream(opid, stream)
            self._cache.unwatch(entry, stream.notify)
            self._cache.unpin(entry)

    async def wait_finished(self, opid: str) -> Snapshot:
        """
        Wait until a finish of the operation is known, and return the view at that moment.

        Raises:
            ManagerClosed: the manager closed first.
            InvalidValue: what the opid breaks.
            WrongThread, WrongProcess: as `end`.
        """
        async with self.watch(opid, until="finished") as snapshots:
            async for snapshot in snapshots:
                if snapshot.finished_at is not None:
                    return snapshot
        raise ManagerClosed

    def statistics(self) -> Statistics:
        """
        Return counters and health. From any thread.

        Raises:
            WrongProcess: this process was forked from the manager's.
        """
        self._home.check_process()
        health = self._background.health
        counters, (cached, pending_timelines, pending_updates) = self._cache.totals()
        return Statistics(
            accepted_updates=counters.accepted(pending_updates),
            saved_updates=counters.saved,
            superseded_updates=counters.superseded,
            rejected_updates=counters.rejected,
            dropped_updates=counters.dropped,
            pending_updates=pending_updates,
            refused_updates=counters.refused,
            changing_merges=health.changing_merges,
            cached_timelines=cached,
            pending_timelines=pending_timelines,
            oldest_pending=self._cache.oldest_pending,
            last_save_at=health.last_save_at,
            last_load_at=health.last_load_at,
            failing_since=health.failing_since,
            hints_dropped=health.hints_dropped,
            listening=health.listening,
            changes_heard=health.changes_heard,
        )

    @enable_ki_protection
    async def shutdown(self, deadline: float) -> None:
        """
        Stop accepting, save what is left, and end the background tasks.

        It returns by the deadline if the Store honours cancellation. Cancelled, the drain goes on without the
        caller, until the manager's block ends and `drain_timeout` is over. Calls at the same time share one drain, at
        the first one's deadline; later calls return at once.

        Args:
            deadline: when to give up, by the Trio clock: `trio.current_time() + seconds`.

        Raises:
            DrainError: not everything was saved; it names how many updates of which operations are lost.
            InvalidValue: the deadline is no time; nothing has changed.
            WrongThread, WrongProcess: as `end`.
        """
        self._home.check_run()
        if not isinstance(deadline, int | float) or isnan(deadline):
            raise InvalidValue("deadline", f"expected a time of the Trio clock, got {deadline!r}")
        background = self._background
        if background.ended.is_set():
            await trio.lowlevel.checkpoint()
            return
        if not self._cache.is_closed:
            background.begin_drain(deadline)
        background.told += 1
        try:
            await background.ended.wait()
        except BaseException:  # cancelled, or Ctrl-C: somebody else is told
            background.told -= 1
            raise
        if background.lost:
            raise DrainError(background.lost)


def _the_one(opid: str, name: str, actor_key: str, stages: list[Stage]) -> Stage:
    """
    Return the only stage there is.

    Raises:
        StageNotFound: there is none.
        AmbiguousStage: there are several.
    """
    if not stages:
        raise StageNotFound(opid, name, actor_key)
    if len(stages) > 1:
        candidates = tuple(StageRef(opid, stage.id, stage.actor) for stage in stages)
        raise AmbiguousStage(opid, name, actor_key, candidates)
    return stages[0]


def store_error(opid: str, failure: Exception, problem: str, snapshot: Snapshot | None = None) -> StoreError:
    """
    Return the error to raise for a failure that may be told to several callers: a new one each, with its cause.

    What the library says itself is said again, since it tells what to do; another one's text may quote anything.
    """
    kinds = (CorruptEntry, StoreRejected, StoreUnavailable)
    kind = next((kind for kind in kinds if isinstance(failure, kind)), StoreError)
    reason = failure.problem if isinstance(failure, StoreError) else type(failure).__name__
    error = kind(opid, f"{problem}: {reason}", snapshot=snapshot)
    error.__cause__ = failure
    return error
