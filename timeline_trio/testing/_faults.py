"""
A Store that fails on demand, around another: one fault for each place where a task can be cut.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Literal, TypeVar, final

import msgspec
import trio

from .._errors import StoreError, StoreUnavailable
from .._model._document import Update
from .._store._contract import (
    NOTHING_KNOWN,
    Answer,
    AnswerOrError,
    Change,
    Known,
    Merged,
    MergeRequest,
    MergesMany,
    Store,
    WatchesChanges,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence

T = TypeVar("T")

StoreMethod = Literal["merge", "merge_many", "read", "mget", "latest", "watch"]


class StoreCall(msgspec.Struct, frozen=True):
    """
    One call that a `FaultyStore` received.

    Attributes:
        method: its name.
        opids: the operations that it was about; none for `latest` and `watch`.
        updates: what was to be merged.
    """

    method: StoreMethod
    opids: tuple[str, ...] = ()
    updates: tuple[Update, ...] = ()


@final
class Fault:
    """
    Something that will happen to one call or to many, made by the methods of `FaultyStore`.
    """

    def __init__(self, reached: trio.Event, released: trio.Event) -> None:
        self._reached = reached
        self._released = released

    async def wait_reached(self) -> None:
        """
        Wait until a call has met the fault.
        """
        await self._reached.wait()

    def release(self) -> None:
        """
        Let the calls that hang go on, and meet no others from now on.
        """
        self._released.set()


class _Plan:
    def __init__(self, method: StoreMethod, nth: int | None, error: Exception | None, *, after: bool) -> None:
        self.after = after
        self.reached = trio.Event()
        self.released = trio.Event()
        self._method = method
        self._countdown = nth
        self._error = error

    def meets(self, method: StoreMethod) -> bool:
        if method != self._method or self._countdown == 0 or self.released.is_set():
            return False
        if self._countdown is None:
            return True
        self._countdown -= 1
        return self._countdown == 0

    async def strike(self) -> None:
        self.reached.set()
        if self._error is not None:
            raise self._error
        await self.released.wait()


@final
class _Watch:
    """
    Passes changes on until it is cut. No generator, which a cancelled step would end.
    """

    def __init__(self, changes: AsyncIterator[Change]) -> None:
        self._changes = changes
        self._scope = trio.CancelScope()
        self._is_cut = False

    def cut(self) -> None:
        self._is_cut = True
        self._scope.cancel()

    def __aiter__(self) -> _Watch:
        return self

    async def __anext__(self) -> Change:
        if not self._is_cut:
            with trio.CancelScope() as self._scope:
                return await anext(self._changes)
        raise StoreUnavailable("", "the connection was cut by the test")


@final
class FaultyStore:
    """
    Passes each call on to another Store, except for the faults that were asked for.

    It has `merge_many` and `watch` only if the other Store has them and they are not hidden. A fault of `watch` meets
    the one who enters.

    Args:
        inner: the Store that does the work.
        hide_merge_many: do not offer the capability.
        hide_watch: do not offer the capability.

    Attributes:
        calls: every call so far, in order.
        outage: while this is set, each call raises it and does nothing.
        strip_documents: leave the merged document out of the answers to merges.
    """

    def __init__(self, inner: Store, *, hide_merge_many: bool = False, hide_watch: bool = False) -> None:
        self._inner = inner
        self._plans: list[_Plan] = []
        self.calls: list[StoreCall] = []
        self.outage: Exception | None = None
        self.strip_documents = False
        if isinstance(inner, MergesMany) and not hide_merge_many:
            self._inner_merge_many = inner.merge_many
            self.merge_many: Callable[[Sequence[MergeRequest]], Awaitable[Sequence[Merged | StoreError]]] = (
                self._merge_many
            )
        self._watches: set[_Watch] = set()
        if isinstance(inner, WatchesChanges) and not hide_watch:
            self._inner_watch = inner.watch
            self.watch: Callable[[], AbstractAsyncContextManager[AsyncIterator[Change]]] = self._watch

    def __repr__(self) -> str:
        return f"<FaultyStore around {self._inner!r}, {len(self.calls)} calls, outage {self.outage!r}>"

    def count(self, method: StoreMethod) -> int:
        """
        Return how many calls of a method there were.
        """
        return sum(call.method == method for call in self.calls)

    def fail(
        self, method: StoreMethod, error: Exception | None = None, *, nth: int | None = 1, after: bool = False
    ) -> Fault:
        """
        Let a call of a method raise.

        Args:
            method: its name.
            error: what is raised, `StoreUnavailable` by default.
            nth: which call from now on, 1 for the next; None for each one, until the fault is released.
            after: raise after the work was done.
        """
        error = error or StoreUnavailable("", "this failure was asked for by the test")
        return self._add(_Plan(method, nth, error, after=after))

    def lose_reply(self, method: StoreMethod = "merge", *, nth: int | None = 1) -> Fault:
        """
        Let a call do its work and then raise `StoreUnavailable`, as if the connection broke after the commit.
        """
        return self.fail(method, StoreUnavailable("", "the reply was lost"), nth=nth, after=True)

    def hang(self, method: StoreMethod, *, nth: int | None = 1, after: bool = False) -> Fault:
        """
        Let a call hang before its work, or after it, until it is cancelled or the fault is released.
        """
        return self._add(_Plan(method, nth, None, after=after))

    def cut_watches(self) -> None:
        """
        Let everybody who watches now get `StoreUnavailable`, as if the connection broke.
        """
        for watch in self._watches:
            watch.cut()

    async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
        """
        Merge, as the other Store does it.
        """
        call = StoreCall("merge", (opid,), (update,))
        return self._stripped(await self._pass_on(call, lambda: self._inner.merge(opid, update, known)))

    async def read(self, opid: str, known: Known | None = None) -> Answer:
        """
        Read one, as the other Store does it.
        """
        return await self._pass_on(StoreCall("read", (opid,)), lambda: self._inner.read(opid, known))

    async def mget(self, opids: Sequence[str], known: Mapping[str, Known] = NOTHING_KNOWN) -> Sequence[AnswerOrError]:
        """
        Read several, as the other Store does it.
        """
        return await self._pass_on(StoreCall("mget", tuple(opids)), lambda: self._inner.mget(opids, known))

    async def latest(
        self, after: int, limit: int, known: Mapping[str, Known] = NOTHING_KNOWN
    ) -> Sequence[AnswerOrError]:
        """
        Read the latest, as the other Store does it.
        """
        return await self._pass_on(StoreCall("latest"), lambda: self._inner.latest(after, limit, known))

    async def _merge_many(self, requests: Sequence[MergeRequest]) -> Sequence[Merged | StoreError]:
        opids = tuple(request.opid for request in requests)
        call = StoreCall("merge_many", opids, tuple(request.update for request in requests))
        answers = await self._pass_on(call, lambda: self._inner_merge_many(requests))
        return [self._stripped(answer) if isinstance(answer, Merged) else answer for answer in answers]

    @asynccontextmanager
    async def _watch(self) -> AsyncGenerator[AsyncIterator[Change]]:
        await self._pass_on(StoreCall("watch"), trio.lowlevel.checkpoint)
        async with self._inner_watch() as changes:
            watch = _Watch(changes)
            self._watches.add(watch)
            try:
                yield watch
            finally:
                self._watches.discard(watch)

    def _add(self, plan: _Plan) -> Fault:
        self._plans.append(plan)
        return Fault(plan.reached, plan.released)

    async def _pass_on(self, call: StoreCall, work: Callable[[], Awaitable[T]]) -> T:
        self.calls.append(call)
        met = [plan for plan in self._plans if plan.meets(call.method)]
        await trio.lowlevel.checkpoint()
        if self.outage is not None:
            raise self.outage
        for plan in met:
            if not plan.after:
                await plan.strike()
        answer = await work()
        for plan in met:
            if plan.after:
                await plan.strike()
        return answer

    def _stripped(self, merged: Merged) -> Merged:
        return msgspec.structs.replace(merged, document=None) if self.strip_documents else merged
