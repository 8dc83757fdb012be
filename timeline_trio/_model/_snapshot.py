"""
A detached read of one operation, and what can be asked of it without any I/O.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from .._errors import InvalidValue
from ._codec import decode_payload, encode_payload
from ._text import one_line
from ._time import format_duration
from ._values import Stage

if TYPE_CHECKING:
    from ._document import Document
    from ._json import JSONValue
    from ._values import Status
    from ._wire import Collection


class StageNode(msgspec.Struct, frozen=True):
    """
    A stage in a tree, with those that name it as their parent.

    A stage id may occur several times, once an actor; children then stand below the first of them.

    Attributes:
        stage: the stage.
        children: its children, ordered by start.
        orphan: the stage names a parent that is not here, or that lies in a cycle; it stands at the top instead.
    """

    stage: Stage
    children: tuple[StageNode, ...]
    orphan: bool


class Snapshot:
    """
    An operation as this process saw it at one moment. Nobody's later change reaches it.

    Attributes:
        document: the facts.
        captured_at: when, in nanoseconds since the epoch.
        collection: how complete it may be.
    """

    def __init__(self, document: Document, captured_at: int, collection: Collection) -> None:
        self.document = document
        self.captured_at = captured_at
        self.collection = collection

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Snapshot):
            return NotImplemented
        return (self.document, self.captured_at, self.collection) == (
            other.document,
            other.captured_at,
            other.collection,
        )

    def __hash__(self) -> int:
        return hash((self.opid, self.captured_at))

    def __repr__(self) -> str:
        return (
            f"<Snapshot {self.opid!r} {self.status}, {len(self.document.stages)} stages "
            f"({len(self.running_stages())} running), {self.collection}>"
        )

    @property
    def opid(self) -> str:
        """
        The operation's id.
        """
        return self.document.opid

    @property
    def root_id(self) -> str:
        """
        The id that stands for the operation itself, for use as an explicit parent.
        """
        return self.document.root_id

    @property
    def name(self) -> str:
        """
        The operation's name, "" before its start is known.
        """
        return self.document.name

    @property
    def status(self) -> Status:
        """
        The operation's result; unknown until a finish is recorded.
        """
        return self.document.status

    @property
    def error(self) -> str:
        """
        Text of the operation's failure or cancellation.
        """
        return self.document.error

    @property
    def attributes(self) -> dict[str, JSONValue]:
        """
        The operation's attributes, in a new dict.
        """
        return self.document.attributes

    @property
    def started_at(self) -> int | None:
        """
        The operation's start in nanoseconds since the epoch, if known.
        """
        return self.document.started_at

    @property
    def finished_at(self) -> int | None:
        """
        The operation's finish in nanoseconds since the epoch, if known.
        """
        return self.document.finished_at

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """
        All stages, ordered by start, id and actor.
        """
        return tuple(sorted(self.document.stages.values(), key=_order))

    @property
    def duration(self) -> int:
        """
        The operation's length in nanoseconds, up to its finish or else to `captured_at`; 0 without a start.

        It is negative where the finish was recorded as earlier than the start. It is never a sum of stages.
        """
        if self.started_at is None:
            return 0
        return (self.captured_at if self.finished_at is None else self.finished_at) - self.started_at

    def stage_duration(self, stage: Stage) -> int:
        """
        Return a stage's length in nanoseconds, up to `captured_at` while it runs.
        """
        return stage.duration(self.captured_at)

    def stage(self, stage_id: str, actor_key: str | None = None) -> Stage | None:
        """
        Return the stage of that id, of that actor if `actor_key` is given, else the first of them; or None.
        """
        if actor_key is not None:
            return self.document.stages.get((stage_id, actor_key))
        return next((stage for stage in self.stages if stage.id == stage_id), None)

    def named(self, name: str) -> tuple[Stage, ...]:
        """
        Return the stages of that name, in order.
        """
        return tuple(stage for stage in self.stages if stage.name == name)

    def running_stages(self) -> tuple[Stage, ...]:
        """
        Return the stages without an end, in order.
        """
        return tuple(stage for stage in self.stages if stage.finished_at is None)

    def latest_failed_stage(self) -> Stage | None:
        """
        Return the failed or canceled stage that finished last; ties go by id, then by actor. None if none failed.
        """
        failed = [s for s in self.stages if s.finished_at is not None and s.status in {"failed", "canceled"}]
        return max(failed, key=lambda s: (s.finished_at, s.id, s.actor.key), default=None)

    def tree(self) -> tuple[StageNode, ...]:
        """
        Return the stages as trees: each stage exactly once, children below their parents, by start.

        A stage whose parent is not here stands at the top as an orphan, until the parent comes. Where parents
        form a cycle, it is cut at the cycle's first stage, which stands at the top as an orphan too.
        """
        children: dict[str, list[Stage]] = {}
        owners = {stage.id: stage.key for stage in reversed(self.stages)}
        tops: list[Stage] = []
        for stage in self.stages:
            if stage.parent_id in owners:
                children.setdefault(stage.parent_id, []).append(stage)
            else:
                tops.append(stage)
        forest: list[StageNode] = []
        placed: set[tuple[str, str]] = set()
        for stage in tops:
            orphan = stage.parent_id not in {"", self.root_id}
            forest.append(_grow(stage, children, owners, placed, orphan=orphan))
        for stage in self.stages:
            if stage.key not in placed:  # in a cycle, or below one
                top = _first_of_cycle(stage, owners, self.document.stages)
                forest.append(_grow(top, children, owners, placed, orphan=True))
        return tuple(sorted(forest, key=lambda node: _order(node.stage)))

    def summary(self) -> str:
        """
        Return the operation in a few lines of text, the same for equal snapshots.

        A line for the operation, one a stage, and a last one with the collection flags. No ids, attributes or
        codes; an actor only where its stage id occurs more than once. Line breaks and control characters in names
        and texts are shown escaped, so that each line is what it says.
        """
        seen: dict[str, int] = {}
        for stage in self.stages:
            seen[stage.id] = seen.get(stage.id, 0) + 1
        lines = [_line(self.name or "operation", self.status, self.duration, self.error)]
        for stage in self.stages:
            actor = f" ({stage.actor.name or stage.actor.id or 'no actor'})" if seen[stage.id] > 1 else ""
            lines.append("  " + _line(stage.name + actor, stage.status, self.stage_duration(stage), stage.error))
        flags = self.collection
        lines.append(f"local_flushed={str(flags.local_flushed).lower()} store_read={str(flags.store_read).lower()}")
        return "\n".join(lines)

    def to_json(self) -> str:
        """
        Write the snapshot as JSON: the document's members, `captured_at` and `collection`.
        """
        return encode_payload(self.document, self.stages, self.captured_at, self.collection)

    @classmethod
    def from_json(cls, text: str | bytes) -> Snapshot:
        """
        Read what `to_json` wrote.

        Raises:
            InvalidValue: naming the member; the whole payload is refused.
        """
        document, captured_at, collection = decode_payload(text)
        if captured_at is None or collection is None:
            raise InvalidValue("captured_at", "expected a snapshot, with captured_at and collection")
        return cls(document, captured_at, collection)


def _order(stage: Stage) -> tuple[int, str, str]:
    return (stage.started_at, stage.id, stage.actor.key)


def _first_of_cycle(stage: Stage, owners: dict[str, tuple[str, str]], stages: dict[tuple[str, str], Stage]) -> Stage:
    path: dict[tuple[str, str], Stage] = {}
    while stage.key not in path:
        path[stage.key] = stage
        stage = stages[owners[stage.parent_id]]
    ascent = list(path.values())
    return min(ascent[ascent.index(stage) :], key=_order)


def _grow(
    top: Stage,
    children: dict[str, list[Stage]],
    owners: dict[str, tuple[str, str]],
    placed: set[tuple[str, str]],
    *,
    orphan: bool,
) -> StageNode:
    # Depth first without recursion: a chain of parents may be longer than Python's stack.
    placed.add(top.key)
    order = [top]
    below: dict[tuple[str, str], list[Stage]] = {}
    for stage in order:
        mine = children.get(stage.id, []) if owners[stage.id] == stage.key else []
        below[stage.key] = [child for child in mine if child.key not in placed]
        placed.update(child.key for child in below[stage.key])
        order += below[stage.key]
    nodes: dict[tuple[str, str], StageNode] = {}
    for stage in reversed(order):
        nodes[stage.key] = StageNode(
            stage, tuple(nodes[child.key] for child in below[stage.key]), orphan and stage is top
        )
    return nodes[top.key]


def _line(name: str, status: str, duration: int, error: str) -> str:
    text = f"{name}: {status}, {format_duration(duration)}"
    return one_line(f"{text}: {error}" if error else text)
