"""
What the demo's processes say to each other: JSON, a line each, through the pipes of a worker.

The facts themselves never travel here, they go through the store.
"""

from __future__ import annotations

from typing import final

import msgspec


class Orders(msgspec.Struct, frozen=True, tag=True):
    """
    To a worker, first of all. They come by pipe and not as arguments, since a URL may hold a password.

    Attributes:
        store: the store's URL.
        opid: the operation.
        host: whom the worker plays.
        speed: how many times faster than written.
    """

    store: str
    opid: str
    host: str
    speed: float


class Handover(msgspec.Struct, frozen=True, tag=True):
    """
    From a worker, and passed on to the others: a stage that theirs may be part of.

    Attributes:
        step: the step's name.
        ref: the stage, as `StageRef.to_header` writes it.
    """

    step: str
    ref: str


class Left(msgspec.Struct, frozen=True, tag=True):
    """
    To a worker: the process of another host has ended, in whatever way.
    """

    host: str


class Flushed(msgspec.Struct, frozen=True, tag=True):
    """
    From a worker: the store has acknowledged this state of a stage.

    Attributes:
        stage: the state, as `encode_stage` writes it.
    """

    stage: str


Message = Orders | Handover | Left | Flushed

_decoder = msgspec.json.Decoder(Message)


def to_line(message: Message) -> bytes:
    """
    Write a message.
    """
    return msgspec.json.encode(message) + b"\n"


@final
class Inbox:
    """
    Makes messages of bytes as they come from a pipe, in any portions.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes | bytearray) -> list[Message]:
        """
        Return the messages that are complete now.
        """
        lines, _, self._rest = (self._rest + data).rpartition(b"\n")
        return _decoder.decode_lines(lines)
