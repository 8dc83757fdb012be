"""
Generated programs of merges and reads leave the same in Redis as in memory, and are answered alike.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import hypothesis.strategies as st
from hypothesis import given, settings

from timeline_trio.model import merge
from timeline_trio.store import (
    Changes,
    Found,
    Known,
    MemoryStore,
    Merged,
    MergeRequest,
    MergesMany,
    NotFound,
    Unchanged,
)
from timeline_trio.testing import ManualClock
from timeline_trio_redis import open_redis

from .strategies import updates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from timeline_trio.model import Document, Update
    from timeline_trio.store import AnswerOrError, Store
    from timeline_trio.testing.servers import RedisServer

OPIDS = ("a", "b", "\xf6")
PREFIXES = count()

Step = tuple[str, str, "Update", int]

opids = st.sampled_from(OPIDS)
kinds = st.sampled_from(("merge", "merge", "merge", "many", "delete", "tick"))
steps: st.SearchStrategy[Step] = st.tuples(kinds, opids, updates, st.integers(0, 3))


class Side:
    """
    One of the two stores, with all that was ever read from it.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.history: dict[str, list[Known]] = {opid: [] for opid in OPIDS}

    def known(self, opid: str, age: int) -> Known | None:
        """
        Return what was read that many changes ago; None for what is older than all.
        """
        past = self.history[opid]
        return past[-1 - age] if age < len(past) else None

    async def step(self, step: Step) -> object:
        """
        Do one step; return what both stores must say of it.
        """
        kind, opid, update, age = step
        if kind == "merge":
            return _said(await self.store.merge(opid, update, self.known(opid, age)))
        if kind == "many":
            assert isinstance(self.store, MergesMany)
            requests = [MergeRequest(each, update, self.known(each, age)) for each in OPIDS]
            return [_said(answer) for answer in await self.store.merge_many(requests)]
        if kind == "delete":
            await self.store.delete(opid)  # type: ignore[attr-defined]
            self.history[opid].clear()
        return None

    async def look(self, age: int) -> tuple[dict[str, tuple[int, Document]], list[str]]:
        """
        Read all there is in each way, with what was known before, and keep it.
        """
        known = {opid: held for opid in OPIDS if (held := self.known(opid, age)) is not None}
        latest = await self.store.latest(0, 9, known)
        found = self._resolved(latest, known)
        assert self._resolved(await self.store.mget(OPIDS, known), known) == found
        for opid in OPIDS:
            try:
                answer = await self.store.read(opid, known.get(opid))
            except NotFound:
                assert opid not in found
            else:
                assert self._resolved([answer], known)[opid] == found[opid]
        for opid, held in found.items():
            if not self.history[opid] or self.history[opid][-1] != held:
                self.history[opid].append(held)
        plain = {opid: (held.revision.version, held.document) for opid, held in found.items()}
        return plain, [answer.opid for answer in latest]

    @staticmethod
    def _resolved(answers: Sequence[AnswerOrError], known: dict[str, Known]) -> dict[str, Known]:
        found: dict[str, Known] = {}
        for answer in answers:
            match answer:
                case Found():
                    found[answer.opid] = Known(answer.revision, answer.document)
                case Unchanged():
                    assert known[answer.opid].revision == answer.revision
                    found[answer.opid] = known[answer.opid]
                case Changes():
                    assert known[answer.opid].revision == answer.since
                    document, _ = merge(known[answer.opid].document, answer.update)
                    found[answer.opid] = Known(answer.revision, document)
                case _:
                    raise AssertionError(answer)
        return found


def _said(answer: object) -> tuple[bool, int | None]:
    assert isinstance(answer, Merged)
    return answer.changed, None if answer.revision is None else answer.revision.version


@given(st.lists(st.tuples(steps, st.integers(0, 3)), min_size=1, max_size=12))
@settings(max_examples=150)
async def test_redis_and_memory_say_the_same(redis_server: RedisServer, program: list[tuple[Step, int]]) -> None:
    clock = ManualClock()
    memory = Side(MemoryStore(clock=clock))
    async with open_redis(redis_server.url, prefix=f"equivalence-{next(PREFIXES)}", clock=clock) as store:
        redis = Side(store)
        for step, age in program:
            if step[0] == "tick":
                clock.advance(step[3] * 0.000_001)
            assert await redis.step(step) == await memory.step(step)
            assert await redis.look(age) == await memory.look(age)
