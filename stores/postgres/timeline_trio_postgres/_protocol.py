"""
The parts of libpq's protocol that are spoken on Trio's own loop, so that they are cancelled like anything else.

These are opening a connection, asking the server to stop a statement, and listening: there is little to compute, and
much to wait for. Scripts run in threads, since to decode a large document takes a while.
"""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Final, NoReturn

import psycopg
import trio
from psycopg import capabilities, pq
from psycopg.conninfo import make_conninfo
from psycopg.errors import error_from_result

from timeline_trio.store import StoreUnavailable

from ._failures import reason_of
from ._options import surroundings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from psycopg.pq.abc import PGconn

    from ._options import Options

STOP_TIME: Final = 0.1  # seconds that a cancelled caller waits for the server to stop
_CHUNK: Final = 65_536  # bytes
_DEFAULT_PORT: Final = 5432
_UTF8: Final = b"UTF8"


async def connect(options: Options) -> PGconn:
    """
    Open a connection to the first address that accepts one, each having its share of the time.

    Cancelled or failing, it leaves nothing open. The time as a whole is the caller's to limit.

    Raises:
        StoreUnavailable: with libpq's reason, which names no password.
    """
    addresses = await _find_addresses(options)
    failure = StoreUnavailable("", f"{options.name} did not accept a connection in time")
    for left in range(len(addresses), 0, -1):
        address = addresses[-left]
        # libpq would give all the time to the first one, and none to the others if that one hangs.
        with trio.move_on_after(options.connect_timeout / len(addresses) if left > 1 else inf):  # noqa: ASYNC912
            try:
                return await _connect_to(
                    {**options.parameters, **address}, options.name, is_one_of_several=len(addresses) > 1
                )
            except StoreUnavailable as error:
                failure = error
    raise failure


async def ask_to_stop(connection: PGconn) -> None:
    """
    Ask the server to stop what it does for a connection, by another one. It may, or it may be done.

    Raises:
        psycopg.Error: it could not be asked.
    """
    if not capabilities.has_cancel_safe():  # an old libpq only has a call that blocks
        await trio.lowlevel.checkpoint()
        return
    request = connection.cancel_conn()
    try:
        request.start()
        while (status := request.poll()) != pq.PollingStatus.OK:
            if status == pq.PollingStatus.FAILED:
                raise psycopg.OperationalError(request.get_error_message())
            await _wait(request.socket, status)
    finally:
        request.finish()
    await trio.lowlevel.checkpoint()


async def hang_up(connection: socket.socket) -> None:
    """
    Wait until the server has ended the session, so that the next one is not one too many. Then close it in any case.
    """
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        ended = False
        while not ended:
            await trio.lowlevel.wait_readable(connection)
            with suppress(BlockingIOError):
                ended = not connection.recv(_CHUNK)
    await trio.lowlevel.checkpoint()


async def ask(connection: PGconn, statement: bytes) -> None:
    """
    Have a statement done that returns nothing. Cancelled, the connection is good for nothing any more.

    Raises:
        psycopg.Error: the server refused it, or the connection broke.
    """
    connection.send_query(statement)
    while connection.flush():
        await trio.lowlevel.wait_writable(connection.socket)
    failure: psycopg.Error | None = None
    while True:
        while connection.is_busy():
            await trio.lowlevel.wait_readable(connection.socket)
            connection.consume_input()
        result = connection.get_result()
        if result is None:
            break
        if result.status == pq.ExecStatus.FATAL_ERROR:
            failure = error_from_result(result)
    if failure is not None:
        raise failure
    await trio.lowlevel.checkpoint()


async def _find_addresses(options: Options) -> list[dict[str, str]]:
    """
    Return the parameters that tell one address from the other, names looked up: libpq would block for that.

    Raises:
        StoreUnavailable: no name could be looked up.
    """
    await trio.lowlevel.checkpoint()
    found: list[dict[str, str]] = []
    failure: Exception | None = None
    for address in _split(options.parameters):
        host = address.get("host", "")
        if "hostaddr" in address or host[:1] in {"", "/", "@"}:
            found.append(address)
            continue
        try:
            port = address.get("port", _DEFAULT_PORT)
            for *_, target in await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM):
                found.append({**address, "hostaddr": str(target[0])})
        except (OSError, UnicodeError) as error:
            failure = error
    if not found:
        raise StoreUnavailable("", f"{options.name} could not be looked up; check host and port") from failure
    if options.parameters.get("load_balance_hosts") == "random":
        random.shuffle(found)
    return found


def _split(parameters: Mapping[str, str]) -> list[dict[str, str]]:
    """
    Return the parameters of each single host. What is not said is in the environment, unless a service file says it.
    """
    names = ("host", "hostaddr", "port")
    known = {} if "service" in parameters else surroundings()
    values = [parameters.get(name, known.get(name, "")).split(",") for name in names]
    count = max(map(len, values))
    # One port serves for all hosts.
    columns = [column * count if len(column) == 1 else column for column in values]
    return [
        {name: value for name, value in zip(names, row, strict=True) if value} for row in zip(*columns, strict=False)
    ]


async def _connect_to(  # noqa: ASYNC910 - or it raises
    parameters: Mapping[str, str], name: str, *, is_one_of_several: bool
) -> PGconn:
    connection = pq.PGconn.connect_start(make_conninfo("", **parameters).encode())
    try:
        while connection.status != pq.ConnStatus.BAD:
            status = connection.connect_poll()
            if status == pq.PollingStatus.OK:
                _check_encoding(connection, name)
                connection.nonblocking = 1
                await trio.lowlevel.checkpoint()
                return connection
            if status != pq.PollingStatus.FAILED:
                await _wait(connection.socket, status)
        _refuse(connection, name, with_place=is_one_of_several)
    except trio.Cancelled:
        await _leave(connection)  # noqa: ASYNC102 - it is shielded and bounded itself
        raise
    except BaseException:
        connection.finish()
        raise


async def _leave(connection: PGconn) -> None:  # noqa: ASYNC910 - it follows a cancellation
    """
    Give up a connection that is being opened.
    """
    try:
        with (
            suppress(psycopg.Error, OSError),
            socket.fromfd(connection.socket, socket.AF_INET, socket.SOCK_STREAM) as own,
        ):
            own.settimeout(0)
            with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_TIME):
                await hang_up(own)
    finally:
        connection.finish()


def _refuse(connection: PGconn, name: str, *, with_place: bool) -> NoReturn:
    said = connection.get_error_message().strip()
    reason = reason_of(said, with_place=with_place)
    raise StoreUnavailable("", f"{name} could not be connected to: {reason}") from psycopg.OperationalError(said)


def _check_encoding(connection: PGconn, name: str) -> None:
    encoding = connection.parameter_status(b"server_encoding")
    if encoding not in (None, _UTF8):
        raise StoreUnavailable(
            "",
            f"{name} has the encoding {encoding.decode()}, in which not every document can be stored; "
            "make a database by CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0",
        )


async def _wait(descriptor: int, status: int) -> None:
    if status == pq.PollingStatus.READING:
        await trio.lowlevel.wait_readable(descriptor)
    else:
        await trio.lowlevel.wait_writable(descriptor)
