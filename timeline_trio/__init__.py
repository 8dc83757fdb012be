"""
One live timeline of an operation that many programs work on together.

`async with open_manager(store) as manager:` is where to begin; see the README.
"""

from ._errors import ActiveStages as ActiveStages
from ._errors import AmbiguousStage as AmbiguousStage
from ._errors import BufferFull as BufferFull
from ._errors import CorruptEntry as CorruptEntry
from ._errors import DrainError as DrainError
from ._errors import FlushError as FlushError
from ._errors import InvalidAttribute as InvalidAttribute
from ._errors import InvalidStage as InvalidStage
from ._errors import InvalidValue as InvalidValue
from ._errors import ManagerClosed as ManagerClosed
from ._errors import NoDefaultManager as NoDefaultManager
from ._errors import NotFound as NotFound
from ._errors import StageNotFound as StageNotFound
from ._errors import StoreError as StoreError
from ._errors import StoreRejected as StoreRejected
from ._errors import StoreUnavailable as StoreUnavailable
from ._errors import TimelineError as TimelineError
from ._errors import WrongProcess as WrongProcess
from ._errors import WrongThread as WrongThread
from ._manager._config import Config as Config
from ._manager._lifetime import open_manager as open_manager
from ._manager._manager import Manager as Manager
from ._manager._statistics import Statistics as Statistics
from ._manager._watch import Snapshots as Snapshots
from ._model._snapshot import Snapshot as Snapshot
from ._model._snapshot import StageNode as StageNode
from ._model._values import Actor as Actor
from ._model._values import Stage as Stage
from ._model._values import StageRef as StageRef
from ._model._values import Status as Status
from ._model._wire import Collection as Collection
from ._public import publish
from ._record._blocks import OperationBlock as OperationBlock
from ._record._blocks import StageBlock as StageBlock
from ._record._blocks import current_stage as current_stage
from ._record._handles import StageHandle as StageHandle
from ._record._operation_handle import Handle as Handle
from ._record._outcome import Canceled as Canceled
from ._record._outcome import outcome_of as outcome_of
from ._store._open import open_store as open_store
from ._timeline._default import begin as begin
from ._timeline._default import end as end
from ._timeline._default import finish as finish
from ._timeline._default import get_default as get_default
from ._timeline._default import operation as operation
from ._timeline._default import read as read
from ._timeline._default import record as record
from ._timeline._default import set_default as set_default
from ._timeline._default import stage as stage
from ._timeline._default import start as start
from ._timeline._noop import Noop as Noop
from ._timeline._noop import noop as noop
from ._timeline._protocol import Timeline as Timeline
from ._timeline._sealed import Sealed as Sealed
from ._timeline._sealed import open_sealed as open_sealed
from ._timeline._standalone import new as new

__all__ = [
    "ActiveStages",
    "Actor",
    "AmbiguousStage",
    "BufferFull",
    "Canceled",
    "Collection",
    "Config",
    "CorruptEntry",
    "DrainError",
    "FlushError",
    "Handle",
    "InvalidAttribute",
    "InvalidStage",
    "InvalidValue",
    "Manager",
    "ManagerClosed",
    "NoDefaultManager",
    "Noop",
    "NotFound",
    "OperationBlock",
    "Sealed",
    "Snapshot",
    "Snapshots",
    "Stage",
    "StageBlock",
    "StageHandle",
    "StageNode",
    "StageNotFound",
    "StageRef",
    "Statistics",
    "Status",
    "StoreError",
    "StoreRejected",
    "StoreUnavailable",
    "Timeline",
    "TimelineError",
    "WrongProcess",
    "WrongThread",
    "begin",
    "current_stage",
    "end",
    "finish",
    "get_default",
    "new",
    "noop",
    "open_manager",
    "open_sealed",
    "open_store",
    "operation",
    "outcome_of",
    "read",
    "record",
    "set_default",
    "stage",
    "start",
]

publish(globals(), __name__)
