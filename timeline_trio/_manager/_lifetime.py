"""
How a manager lives: as long as a block, and a little longer.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from math import isfinite
from typing import TYPE_CHECKING, Final, cast

import trio
from trio.lowlevel import enable_ki_protection

from .._errors import InvalidValue
from .._store._contract import require_store
from .._store._noop import NoopStore
from ._background import Background, without_cancelled
from ._config import Config
from ._manager import Manager

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from .._store._contract import Store

_DEFAULTS: Final = Config()


@asynccontextmanager
@enable_ki_protection
async def open_manager(
    store: Store | None = None, *, config: Config = _DEFAULTS, drain_timeout: float = 5.0
) -> AsyncGenerator[Manager]:
    """
    Open a manager for the length of a block, and save what is left at its end.

    The block is transparent: what its body raises leaves it unchanged. When the body ends, by return, error,
    cancellation or Ctrl-C, the background tasks are still alive; then the manager stops accepting and drains, in a
    shielded scope of `drain_timeout`. What could not be saved by then goes to `Config.on_error` as a `DrainError`:
    the observed program does not fail because its monitor did. A second Ctrl-C cuts the drain short.

    Only a bug in the manager itself ends the body: it is cancelled, and the original exception leaves the block;
    if the body fails too, both leave it in an `ExceptionGroup` of two, the body's first.

    Args:
        store: where operations are shared; without one, facts stay in this process. Whoever opened it closes it,
            after the manager.
        config: the manager's options.
        drain_timeout: seconds for the last saves.

    Raises:
        InvalidValue: naming the argument.
    """
    if store is not None:
        require_store(store)
    if not isinstance(config, Config):
        raise InvalidValue("config", f"expected a Config, got {type(config).__name__}")
    if not isinstance(drain_timeout, int | float) or not isfinite(drain_timeout) or drain_timeout < 0:
        raise InvalidValue("drain_timeout", f"expected seconds, 0 or more and finite, got {drain_timeout!r}")
    await trio.lowlevel.checkpoint()
    shared = NoopStore() if store is None else store
    background = Background(shared, config)
    manager = Manager(shared, config, background)
    failure: BaseException | None = None
    async with trio.open_nursery(strict_exception_groups=True) as nursery:
        with trio.CancelScope() as body:  # noqa: ASYNC100 - what is inside of it is the block's body
            nursery.start_soon(background.run, body.cancel)  # noqa: ASYNC111 - cancelling it late does nothing
            try:
                yield manager
            except BaseException as error:  # noqa: ASYNC103, BLE001 - raised again once the manager has drained
                failure = error
        interrupt = await _drain(background, drain_timeout, interrupted=_is_interrupt(failure))
    _raise(background.crash, failure, interrupt)


async def _drain(background: Background, seconds: float, *, interrupted: bool) -> KeyboardInterrupt | None:
    """
    Drain, and return the Ctrl-C that came meanwhile. The first one only counts, the second cuts.
    """
    interrupt: KeyboardInterrupt | None = None
    background.begin_drain(trio.current_time() + seconds)
    # Shielded, so that what was recorded before a cancellation is saved; bounded by the drain's own deadline.
    with trio.CancelScope(shield=True):  # noqa: ASYNC912 - nothing is waited for if all has ended
        while not background.ended.is_set():
            try:
                await background.ended.wait()
            except KeyboardInterrupt as error:
                if interrupted:
                    background.cut_drain()
                interrupted, interrupt = True, error
    background.report_losses()
    return interrupt  # noqa: ASYNC910 - as above


def _is_interrupt(failure: BaseException | None) -> bool:
    """
    Tell whether the block ended by Ctrl-C, which a nursery in the block wraps in a group.
    """
    if isinstance(failure, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", failure).subgroup(KeyboardInterrupt) is not None
    return isinstance(failure, KeyboardInterrupt)


def _raise(crash: BaseException | None, failure: BaseException | None, interrupt: BaseException | None) -> None:
    if crash is not None:
        # The body was cancelled because of the crash: its Cancelled says nothing more.
        failure = None if failure is None else without_cancelled(failure)
        if failure is not None:
            raise BaseExceptionGroup("the block failed, and so did its manager", [failure, crash])
        raise crash
    if interrupt is not None:
        interrupt.__context__ = failure
        raise interrupt
    if failure is not None:
        raise failure
