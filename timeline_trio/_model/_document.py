"""
The document of an operation, updates to it, and the merge of both.

The order of acceptance decides and nothing else: a stage replaces the one with its key, wholly; a start and a
finish each replace their own parts together; nothing is ever removed. A late "running" state reopens an ended
stage: that is the price of a rule that needs no clocks and no revisions.
"""

from __future__ import annotations

import msgspec

from ._json import JSONValue, decode_object
from ._text import check_opid
from ._validation import check_boundary, check_stage
from ._values import Finish, Stage, StageKey, Start, Status, root_id


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """
    The current facts of one operation: what a Store holds.

    `stages` must not be changed; merging makes a new document.
    """

    opid: str
    start: Start | None = None
    finish: Finish | None = None
    stages: dict[StageKey, Stage] = {}
    extra_json: str = ""

    @property
    def root_id(self) -> str:
        """
        The id that stands for the operation itself, for use as an explicit parent.
        """
        return root_id(self.opid)

    @property
    def name(self) -> str:
        """
        The operation's name, "" before its start is known.
        """
        return self.start.name if self.start else ""

    @property
    def started_at(self) -> int | None:
        """
        The operation's start in nanoseconds since the epoch, if known.
        """
        return self.start.at if self.start else None

    @property
    def finished_at(self) -> int | None:
        """
        The operation's finish in nanoseconds since the epoch, if known.
        """
        return self.finish.at if self.finish else None

    @property
    def status(self) -> Status:
        """
        The operation's result; unknown until a finish is recorded, whatever its stages say.
        """
        return self.finish.status if self.finish else Status.UNKNOWN

    @property
    def error(self) -> str:
        """
        Text of the operation's failure or cancellation.
        """
        return self.finish.error if self.finish else ""

    @property
    def attributes(self) -> dict[str, JSONValue]:
        """
        The operation's attributes, in a new dict.
        """
        return decode_object(self.start.attributes_json) if self.start else {}


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """
    Facts to be merged into one document.

    Attributes:
        start: the operation's start.
        finish: the operation's finish.
        stages: stage states, each key at most once.
        writer: who sends the update; "" for nobody in particular.
        sequence: number of this update among the writer's for the operation; a repeat carries the same.
    """

    start: Start | None = None
    finish: Finish | None = None
    stages: tuple[Stage, ...] = ()
    writer: str = ""
    sequence: int = 0


def check_update(update: Update, opid: str) -> None:
    """
    Refuse an update with an invalid item, whole.

    Raises:
        InvalidValue: naming the field.
    """
    for stage in update.stages:
        check_stage(stage, opid)
    if update.start:
        check_boundary(update.start)
    if update.finish:
        check_boundary(update.finish)


def merge_start(known: Start | None, start: Start) -> Start:
    """
    Return the start that holds after `start` was accepted; never marked live.
    """
    if start.live:
        if known and start.says_no_more_than(known):
            return known
        return msgspec.structs.replace(start, live=False)
    return start


def merge_finish(known: Finish | None, finish: Finish) -> Finish:
    """
    Return the finish that holds after `finish` was accepted; never marked live.
    """
    if finish.live:
        if known and finish.says_no_more_than(known):
            return known
        return msgspec.structs.replace(finish, live=False)
    return finish


def merge(document: Document, update: Update) -> tuple[Document, bool]:
    """
    Merge an update into a document.

    Returns:
        The merged document and whether it differs; the same object if it does not.

    Raises:
        InvalidValue: an item is invalid; the whole update is refused.
    """
    check_opid(document.opid)
    check_update(update, document.opid)
    start, finish = document.start, document.finish
    if update.start:
        start = merge_start(start, update.start)
    if update.finish:
        finish = merge_finish(finish, update.finish)
    known = document.stages
    changes = {stage.key: stage for stage in update.stages}
    changes = {key: stage for key, stage in changes.items() if known.get(key) != stage}
    if not changes and start == document.start and finish == document.finish:
        return document, False
    merged = msgspec.structs.replace(document, start=start, finish=finish, stages=known | changes)
    return merged, True
