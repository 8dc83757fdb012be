"""
The suite for stores.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast, runtime_checkable

import trio.lowlevel

from .._store._contract import MergesMany, WatchesChanges
from . import _checks_data, _checks_merge, _checks_read, _checks_tasks, _checks_watch
from ._clock import ManualClock
from ._trial import Trial

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from .._store._contract import Store
    from ._trial import Ability, Check


_CHECKS: Final = (
    *_checks_merge.CHECKS,
    *_checks_read.CHECKS,
    *_checks_data.CHECKS,
    *_checks_tasks.CHECKS,
    *_checks_watch.CHECKS,
)


@runtime_checkable
class _Deletes(Protocol):
    async def delete(self, opid: str) -> None: ...


async def check_store(
    open_store: Callable[[], AbstractAsyncContextManager[Store]],
    *,
    clock: ManualClock | None = None,
    delete: Callable[[Store, str], Awaitable[None]] | None = None,
) -> None:
    """
    Try a Store against the whole contract, capabilities that it offers included. It stops at the first failure.

    Args:
        open_store: opens the store, fresh and empty each time; it is called some forty times.
        clock: the clock that the stores are opened with, if they take one. What depends on exact update times
            is tried only with it.
        delete: deletes an operation, as the application's retention would. By default the store's own
            `delete`, and if there is none either, what depends on it is not tried.

    Raises:
        AssertionError: with a sentence of what the store does not do, and the failure as the cause.
    """
    await trio.lowlevel.checkpoint()
    for check in _CHECKS:
        async with open_store() as store:
            trial = _prepare(store, clock, delete)
            if check.needs <= trial.abilities:
                await _run(check, trial)


def _prepare(store: Store, clock: ManualClock | None, delete: Callable[[Store, str], Awaitable[None]] | None) -> Trial:
    abilities: set[Ability] = set()
    if clock is not None:
        abilities.add("clock")
    if delete is not None or isinstance(store, _Deletes):
        abilities.add("delete")
    if isinstance(store, MergesMany):
        abilities.add("merge_many")
    if isinstance(store, WatchesChanges):
        abilities.add("watch")
    return Trial(store, clock or ManualClock(), partial(delete or _delete, store), frozenset(abilities))


async def _delete(store: Store, opid: str) -> None:
    await cast("_Deletes", store).delete(opid)


async def _run(check: Check, trial: Trial) -> None:
    try:
        await check.run(trial)
    except Exception as error:
        reason = error if isinstance(error, AssertionError) else repr(error)
        store = type(trial.store).__name__
        raise AssertionError(f"{store} breaks a promise. {check.promise} Not held: {reason}") from error
