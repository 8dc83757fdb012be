"""
Handles without a manager: no background task; the Store is reached when the caller says so, and in its own scope.
"""

from __future__ import annotations

import logging
import time
import weakref
from typing import TYPE_CHECKING, Final, TypedDict, final

import trio

from .._cache._cache import Cache
from .._errors import NotFound, StoreRejected, WrongProcess
from .._manager._config import Config
from .._manager._manager import store_error
from .._manager._reporter import LogErrors
from .._model._snapshot import Snapshot
from .._model._text import check_opid
from .._model._values import NO_ACTOR, Actor, check_actor
from .._model._wire import Collection
from .._process import ProcessGuard
from .._record._beginner import Beginner
from .._record._operation_handle import Handle
from .._record._recorder import Recorder, make_id_source
from .._store._contract import require_store
from .._store._noop import NoopStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._record._recorder import Redact
    from .._store._contract import Store

_LOG: Final = logging.getLogger("timeline_trio")
_LIMITS: Final = Config()


def new(opid: str, *, store: Store | None = None, actor: Actor | None = None) -> Handle:
    """
    Return a handle on one operation that needs neither a manager nor a running Trio until it is flushed.

    Its recordings stay in memory until `flush`, `snapshot` or `finish`; a warning is logged if it is dropped, or the
    program ends, before they were saved.

    Args:
        opid: the operation.
        store: where it is shared; without one, facts stay in the handle.
        actor: who executes what is begun without an actor.

    Raises:
        InvalidValue: naming the argument.
    """
    check_opid(opid)
    if store is not None:
        require_store(store)
    report = LogErrors()
    cache = make_cache(report, _LIMITS.max_pending_updates)
    recorder = Recorder(cache, **recorder_options(NO_ACTOR if actor is None else actor, report))
    exchange = DirectExchange(cache, NoopStore() if store is None else store)
    if store is not None:
        weakref.finalize(exchange, _warn_of_losses, opid, cache, ProcessGuard())
    return Handle(opid, recorder, Beginner(recorder).begin, exchange)


def make_cache(report: LogErrors, max_pending_updates: int) -> Cache:
    """
    Return a cache for one operation.
    """
    return Cache(
        make_id_source()(),
        max_timelines=1,
        max_pending_timelines=1,
        max_pending_updates=max_pending_updates,
        report=report,
    )


class RecorderOptions(TypedDict):
    """
    The options of a recorder.
    """

    actor: Actor
    clock: Callable[[], int]
    new_id: Callable[[], str] | None
    max_fact_bytes: int
    redact: Redact | None
    report: Callable[[str, Exception], None]


def recorder_options(actor: Actor, report: LogErrors) -> RecorderOptions:
    """
    Return the options of a recorder without a manager: the defaults of `Config`.
    """
    check_actor(actor)
    return RecorderOptions(
        actor=actor,
        clock=_LIMITS.clock,
        new_id=None,
        max_fact_bytes=_LIMITS.max_fact_bytes,
        redact=None,
        report=report,
    )


def _warn_of_losses(opid: str, cache: Cache, guard: ProcessGuard) -> None:
    try:
        guard.check()
    except WrongProcess:  # the end of a forked child is not that of the handle
        return
    lost = sum(cache.release().values())
    if lost:
        _LOG.warning("timeline %r: %d updates were recorded and never flushed; call flush() or finish()", opid, lost)


@final
class DirectExchange:
    """
    Saves and reads one handle's operation in the caller's own task.
    """

    def __init__(self, cache: Cache, store: Store) -> None:
        self._cache = cache
        self._store = store
        self._saving = trio.Lock()

    def __repr__(self) -> str:
        return repr(self._store)

    async def flush(self, opid: str) -> None:
        """
        Save everything recorded before this call. Cancelled, it may have been saved; the next flush repeats it.

        Raises:
            StoreRejected: updates were refused for good, and are lost; everything else is saved.
            StoreError: the Store failed; what was not saved stays, and the next flush tries it again.
        """
        await trio.lowlevel.checkpoint()
        entry = self._cache.peek(opid)
        if entry is None:
            return
        last = entry.batches + entry.has_pending
        refusal: StoreRejected | None = None
        async with self._saving:
            while (entry.in_flight or entry.batches < last) and (frozen := self._cache.freeze(opid)):
                _, batch, request = frozen
                began = self._cache.next_tick()
                try:
                    merged = await self._store.merge(opid, request.update, request.known)
                except StoreRejected as error:
                    if self._cache.rejected(entry, batch, error):
                        refusal = error
                except Exception as error:
                    raise store_error(opid, error, "the store could not save") from error
                else:
                    self._cache.saved(entry, batch, merged, began)
        if refusal is not None:
            raise store_error(opid, refusal, "the store could not save")

    async def read(self, opid: str, *, fresh: bool = True) -> Snapshot:
        """
        Read the operation, and lay it under what was recorded here.

        Raises:
            NotFound: nothing is known of the operation.
            StoreError: the Store failed; its `snapshot` is what was recorded here.
        """
        del fresh
        await trio.lowlevel.checkpoint()
        began = self._cache.next_tick()
        known = self._cache.known([opid]).get(opid)
        failure: Exception | None = None
        try:
            self._cache.learn(await self._store.read(opid, known), began, "make")
        except Exception as error:  # noqa: BLE001 - answered with what is known here
            failure = error
        entry = self._cache.peek(opid)
        snapshot = None
        if entry is not None and not entry.is_empty:
            document, flushed = self._cache.view(entry)
            collection = Collection(local_flushed=flushed, store_read=failure is None)
            snapshot = Snapshot(document, time.time_ns(), collection)
        if failure is not None and not isinstance(failure, NotFound):
            raise store_error(opid, failure, "the store could not be read", snapshot) from failure
        if snapshot is None:
            raise NotFound(opid)
        return snapshot
