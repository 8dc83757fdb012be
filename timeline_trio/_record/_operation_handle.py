"""
One operation as an object, on a manager or all by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, final

from ._operation import OperationRecorder

if TYPE_CHECKING:
    from datetime import datetime

    from .._model._snapshot import Snapshot
    from ._handles import Begin
    from ._recorder import Recorder


class Exchange(Protocol):
    """
    How a handle reaches the Store: through a manager, or directly.
    """

    async def flush(self, opid: str, /) -> None:
        """
        Wait until everything recorded before this call is saved.
        """
        ...

    async def read(self, opid: str, /, *, fresh: bool) -> Snapshot:
        """
        Read the operation.
        """
        ...


@final
class Handle(OperationRecorder):
    """
    Records into one operation. Made by `new` and by `Manager.writer`.

    Recording is synchronous, local, and may come from any thread.
    """

    def __init__(self, opid: str, recorder: Recorder, begin: Begin, exchange: Exchange) -> None:
        """
        Not to be called: use `new` or `Manager.writer`.
        """
        super().__init__(opid, recorder, begin)
        self._exchange = exchange

    def __repr__(self) -> str:
        return f"<Handle {self._opid!r} on {self._exchange!r}>"

    async def flush(self) -> None:
        """
        Wait until everything recorded before this call is saved; see `Manager.flush`.
        """
        await self._exchange.flush(self._opid)

    async def snapshot(self) -> Snapshot:
        """
        Save, then read the operation anew. Cancelled, it may have saved.

        Raises:
            StoreError: saving or reading failed.
            NotFound: nothing was recorded here, and the Store does not know the operation.
        """
        await self._exchange.flush(self._opid)
        return await self._exchange.read(self._opid, fresh=True)

    async def finish(self, error: BaseException | str | None = None, *, at: int | datetime | None = None) -> Snapshot:
        """
        Record the operation's finish, before anything is waited for; then do as `snapshot` does.

        Args:
            error: None if it succeeded, else what it failed or was canceled with.
            at: nanoseconds since the epoch or an aware `datetime`; now if left out.

        Raises:
            InvalidValue: naming the field; nothing was recorded.
            BufferFull: a bound on unsaved updates is reached; nothing was recorded.
            ManagerClosed: the manager of a `writer` is closed.
            WrongProcess: this process was forked from the one that made the handle.
            StoreError: the finish is recorded, but saving or reading failed.
        """
        self._recorder.finish(self._opid, error, at=at)
        return await self.snapshot()
