"""
The shapes of the payload's records, as JSON members.

Reading and writing have a type each: what is read may be absent, null or spelled the old way; what is written is
fixed, and the order of the fields is the order of the members.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ._values import Actor

NONE: Final = msgspec.Raw(b"")
"""A member left out, as opposed to one that is null or empty."""


class StageOut(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """
    A stage as it is written: with `actor_ref` inside of a document, with `actor` by itself.
    """

    id: str
    parent_id: str
    actor_ref: int = 0
    actor: Actor | None = None
    elapsed_ns: int | None = None
    name: str
    started_at: str
    finished_at: str = ""
    status: str
    error: str = ""
    code: str = ""
    attributes: msgspec.Raw = NONE


class StageIn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    """
    A stage as it is read. `fields` and `revision` are how older writers wrote.
    """

    id: str
    name: str
    started_at: str
    status: str
    parent_id: str | None = None
    actor_ref: int | None = None
    actor: Actor | None = None
    elapsed_ns: int | None = None
    finished_at: str | None = None
    error: str | None = None
    code: str | None = None
    attributes: msgspec.Raw = NONE
    fields: msgspec.Raw = NONE
    revision: msgspec.Raw = NONE


class DocumentOut(msgspec.Struct, kw_only=True, omit_defaults=True):
    """
    A document or a snapshot as it is written.
    """

    id: str
    root_stage_id: str
    operation: str = ""
    started_at: str = ""
    finished_at: str = ""
    status: str = ""
    error: str = ""
    attributes: msgspec.Raw = NONE
    actors: list[Actor] = []
    stages: list[StageOut | msgspec.Raw]
    captured_at: str = ""
    collection: Collection | None = None


class DocumentIn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """
    A document or a snapshot as it is read; its stages come in a second step.
    """

    id: str
    root_stage_id: str | None = None
    operation: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    status: str | None = None
    error: str | None = None
    attributes: msgspec.Raw = NONE
    fields: msgspec.Raw = NONE
    revision: msgspec.Raw = NONE
    actors: list[Actor] | None = None
    stages: msgspec.Raw = NONE
    captured_at: str | None = None
    collection: Collection | None = None


class Collection(msgspec.Struct, frozen=True):
    """
    How complete a snapshot may be. Neither flag claims that other processes have saved all they know.

    Attributes:
        local_flushed: all that this process recorded has been saved, as far as the entry remembers.
        store_read: the Store was asked for this very snapshot, and answered.
    """

    local_flushed: bool
    store_read: bool
