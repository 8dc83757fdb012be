"""
The store: one hash an operation, one field a fact.
"""

from __future__ import annotations

import os
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, final

import msgspec
import trio

from timeline_trio import WrongProcess
from timeline_trio.model import Document, InvalidValue, Update, merge
from timeline_trio.store import (
    NOTHING_KNOWN,
    Change,
    CorruptEntry,
    MergeRequest,
    NotFound,
    Revision,
    StoreError,
    StoreRejected,
    StoreUnavailable,
    Unreadable,
)

from ._layout import Layout, foreign_key
from ._merging import Merging, Times
from ._reading import answer_of, read_call
from ._scripts import REMOVE, ScriptCall, call_scripts
from ._server import Command, ContentDamaged, KeyForeign, Reply

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence

    from timeline_trio.store import Answer, AnswerOrError, Known, Merged

    from ._options import Options
    from ._server import Server

_MICROSECOND: Final = 1_000
_GREATEST_SCORE: Final = 2**53
_GREATEST_LIMIT: Final = 2**53


class RedisStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """
    How a store is doing.

    Attributes:
        merges: how many merges were answered.
        attempts: how many times a merge was sent: once each, and once more where a live boundary was decided on
            something else than what is stored.
        connections: how many connections are open, without those of `watch`.
    """

    merges: int
    attempts: int
    connections: int


@final
class RedisStore:
    """
    Keeps one hash an operation in Redis; a save costs the changed facts.

    Opened by `open_redis`, or by `timeline_trio.store.open_store` and a URL.
    """

    def __init__(self, server: Server, options: Options, *, clock: Callable[[], int] = time.time_ns) -> None:
        self._server = server
        self._clock = clock
        self._layout = Layout(options.prefix)
        self._overlap_ns = int(options.overlap * 1e9)
        self._lifetime = None if options.expire_after is None else max(1, round(options.expire_after * 1e3))
        self._process = os.getpid()
        self._closed = False
        self._merges = 0
        self._attempts = 0

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<RedisStore {self._server.name} {self._layout.prefix!r} {state}, {self.statistics()}>"

    @property
    def prefix(self) -> str:
        """
        What begins all keys.
        """
        return self._layout.prefix

    async def merge(self, opid: str, update: Update, known: Known | None = None) -> Merged:
        """
        Merge facts into the operation's document, in one atomic step. Cancelled, it may have been done.

        Raises:
            StoreUnavailable: nothing is known of the outcome; the message says what to do.
            StoreRejected: the update is invalid, or what is stored is damaged.
        """
        (answer,) = await self._merge_all([MergeRequest(opid, update, known)])
        if isinstance(answer, StoreError):
            raise answer
        return answer

    async def merge_many(self, requests: Sequence[MergeRequest]) -> Sequence[Merged | StoreError]:
        """
        Merge into several operations, sent together. Cancelled, any of them may have been done.

        Each operation is merged atomically, by itself: Redis has no transaction over slots. So each has its own
        answer, also a `StoreUnavailable`.

        Raises:
            StoreUnavailable: that is the answer of all; nothing is known of their outcome.
        """
        answers = await self._merge_all(requests)
        if answers and all(isinstance(answer, StoreUnavailable) for answer in answers):
            assert isinstance(answers[0], StoreUnavailable)
            raise answers[0]
        return answers

    async def read(self, opid: str, known: Known | None = None) -> Answer:
        """
        Read one operation.

        Raises:
            NotFound: there is none.
            StoreUnavailable: try again; the message says what to do.
            CorruptEntry: what is stored cannot be read.
        """
        for answer in await self.mget([opid], {opid: known} if known else NOTHING_KNOWN):
            if isinstance(answer, Unreadable):
                raise answer.error
            return answer
        raise NotFound(opid)

    async def mget(self, opids: Sequence[str], known: Mapping[str, Known] = NOTHING_KNOWN) -> Sequence[AnswerOrError]:
        """
        Read several operations, sent together.

        Raises:
            StoreUnavailable: try again; the message says what to do.
        """
        await self._require_usable()
        wanted = [opid for opid in dict.fromkeys(opids) if _is_opid(opid)]
        return (await self._read_all(wanted, known))[0]

    async def latest(
        self, after: int, limit: int, known: Mapping[str, Known] = NOTHING_KNOWN
    ) -> Sequence[AnswerOrError]:
        """
        Read the operations that changed most recently.

        Raises:
            StoreUnavailable: try again; the message says what to do.
        """
        await self._require_usable()
        if limit <= 0:
            await trio.lowlevel.checkpoint()
            return []
        limit = min(limit, _GREATEST_LIMIT)
        removed: set[str] = set()
        while True:
            wanted = limit + len(removed)
            recent = await self._recent(after, wanted)
            answers, missing = await self._read_all([opid for opid in recent if _is_opid(opid)], known)
            if missing:
                await self._remove(missing, only_if_gone=True)
            if len(recent) < wanted or removed.issuperset(missing):
                break
            # Others are behind those that were gone: too few answers would say that there are none.
            removed.update(missing)
        strangers = [opid for opid in recent if not _is_opid(opid)]
        found: dict[str, AnswerOrError] = {answer.opid: answer for answer in answers}
        for opid in strangers:
            found[opid] = Unreadable(opid=opid, error=CorruptEntry(opid, "no operation has such an id"))
        return [found[opid] for opid in recent if opid in found][:limit]

    async def delete(self, opid: str) -> None:
        """
        Forget an operation, if it is there. Cancelled, it may have been done.

        Raises:
            StoreUnavailable: nothing is known of the outcome; the message says what to do.
        """
        await self._require_usable()
        await self._remove([opid] if _is_opid(opid) else [], only_if_gone=False)

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[Change], None]:
        """
        Hear of changes until the end of the block, as Redis publishes them: of those committed once it is entered.

        It has a connection of its own. What a slow reader leaves behind is bounded and dropped, and what is published
        while there is no connection is heard by nobody: go on polling beside it.

        Raises:
            StoreUnavailable: on entering, or at any step: nothing more is told; enter a new block.
        """
        await self._require_usable()
        async with self._server.subscribe(self._layout.channel) as messages:
            yield _Changes(messages)

    def statistics(self) -> RedisStatistics:
        """
        Return how the store is doing now.
        """
        return RedisStatistics(merges=self._merges, attempts=self._attempts, connections=self._server.connections)

    async def ping(self) -> None:
        """
        Find out whether the server can be used.

        Raises:
            StoreUnavailable: it cannot; the message says what to do.
        """
        await self._require_usable()
        (slot, key), *_ = self._layout.indexes()
        (reply,) = await self._server.run([Command(slot, b"EXISTS", (key,))])
        if isinstance(reply, Exception):
            raise reply

    def close(self) -> None:
        """
        Refuse calls from now on. The connections are closed by who opened the store.
        """
        self._closed = True

    async def _require_usable(self) -> None:  # noqa: ASYNC910 - what is sent then is the checkpoint
        # Decided before anything is sent: a forked child shares the parent's socket.
        if os.getpid() != self._process:  # and there is perhaps no Trio any more in which to pass a checkpoint
            raise WrongProcess("store")
        if self._closed:
            await trio.lowlevel.checkpoint()
            raise StoreUnavailable("", f"the store of {self._server.name} is closed")

    async def _merge_all(self, requests: Sequence[MergeRequest]) -> list[Merged | StoreError]:
        await self._require_usable()
        answers: dict[int, Merged | StoreError] = {}
        waiting: dict[int, Merging] = {}
        for number, request in enumerate(requests):
            try:
                waiting[number] = Merging(self._layout, request)
            except StoreRejected as error:
                answers[number] = error
        if not waiting:
            await trio.lowlevel.checkpoint()
        while waiting:
            times = Times(self._clock(), self._overlap_ns, self._lifetime)
            self._attempts += len(waiting)
            replies = await call_scripts(self._server, [merging.call(times) for merging in waiting.values()])
            again: dict[int, Merging] = {}
            for (number, merging), reply in zip(waiting.items(), replies, strict=True):
                try:
                    merged = merging.accept(reply)
                except StoreError as error:
                    answers[number] = error
                    continue
                if merged is None:
                    again[number] = merging
                else:
                    answers[number] = merged
                    self._merges += 1
            waiting = again
        return [answers[number] for number in range(len(requests))]

    async def _read_all(
        self, opids: Sequence[str], known: Mapping[str, Known]
    ) -> tuple[list[AnswerOrError], list[str]]:
        """
        Read operations; also return those that are not there.
        """
        if not opids:
            await trio.lowlevel.checkpoint()
            return [], []
        replies = await call_scripts(self._server, [read_call(self._layout, opid, known.get(opid)) for opid in opids])
        answers: list[AnswerOrError] = []
        missing: list[str] = []
        for opid, reply in zip(opids, replies, strict=True):
            try:
                answer = answer_of(opid, reply, known.get(opid))
            except CorruptEntry as error:
                answers.append(Unreadable(opid=opid, error=error))
                continue
            if answer is None:
                missing.append(opid)
            else:
                answers.append(answer)
        return answers, missing

    async def _recent(self, after: int, limit: int) -> list[str]:
        """
        Return the opids in the indexes with a later update time, latest first.
        """
        # Scores are microseconds: rounding down may return an operation again, rounding up would hide one.
        bound = max(-_GREATEST_SCORE, min(after // _MICROSECOND, _GREATEST_SCORE))
        options = ("+inf", f"({bound}", "WITHSCORES", "LIMIT", 0, limit)
        indexes = self._layout.indexes()
        commands = [Command(slot, b"ZREVRANGEBYSCORE", (key, *options)) for slot, key in indexes]
        recent: list[tuple[float, str]] = []
        for (_, key), reply in zip(indexes, await self._server.run(commands), strict=True):
            match reply:
                case list():
                    recent += map(_scored, reply)
                case ContentDamaged():
                    raise foreign_key(key) from reply
                case Exception():
                    raise reply
                case _:
                    pass
        # Python compares text by code points, whose order is that of UTF-8's bytes.
        recent.sort(reverse=True)
        return [opid for _, opid in recent[:limit]]

    async def _remove(self, opids: Sequence[str], *, only_if_gone: bool) -> None:
        if not opids:
            await trio.lowlevel.checkpoint()
            return
        calls: list[ScriptCall] = []
        for opid in opids:
            keys = self._layout.keys(opid)
            named = (keys.facts, keys.versions, keys.index, keys.due)
            calls.append(ScriptCall(REMOVE, keys.slot, named, (opid, int(only_if_gone))))
        for call, reply in zip(calls, await call_scripts(self._server, calls), strict=True):
            if isinstance(reply, KeyForeign):
                raise foreign_key(call.keys[reply.position - 1]) from reply
            if isinstance(reply, Exception):
                raise reply


def _scored(member: Reply) -> tuple[float, str]:
    match member:
        case [bytes(opid), float(score)]:
            return score, opid.decode(errors="surrogateescape")
        case _:
            raise StoreUnavailable("", "the Redis server answered in a way that is not RESP3")


class _Changes:
    """
    An iterator over changes, read from what the merge script publishes.
    """

    def __init__(self, messages: AsyncIterator[bytes]) -> None:
        self._messages = messages

    def __aiter__(self) -> _Changes:
        return self

    async def __anext__(self) -> Change:
        while True:
            change = _change_of(await anext(self._messages))
            if change is not None:
                return change


def _change_of(message: bytes) -> Change | None:
    incarnation, _, rest = message.partition(b":")
    version, _, opid = rest.partition(b":")
    try:
        return Change(opid.decode(), Revision(int(incarnation), int(version)))
    except ValueError:  # anybody may publish there
        return None


def _is_opid(opid: str) -> bool:
    try:
        merge(Document(opid=opid), _NO_FACTS)
    except InvalidValue:
        return False
    return True


_NO_FACTS: Final = Update()
