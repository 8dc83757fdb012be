"""
The contract between Timeline and what keeps its documents, the engine for row stores, and two stores.

Write a Store by implementing `Store`, or for a database of rows by subclassing `RowStore`, and try it with
`timeline_trio.testing.check_store`.
"""

from ._errors import CorruptEntry as CorruptEntry
from ._errors import NotFound as NotFound
from ._errors import StoreError as StoreError
from ._errors import StoreRejected as StoreRejected
from ._errors import StoreUnavailable as StoreUnavailable
from ._public import publish
from ._store._connection_pool import ConnectionPool as ConnectionPool
from ._store._connection_pool import Connector as Connector
from ._store._connection_pool import PoolStatistics as PoolStatistics
from ._store._contract import NOTHING_KNOWN as NOTHING_KNOWN
from ._store._contract import Answer as Answer
from ._store._contract import AnswerOrError as AnswerOrError
from ._store._contract import Change as Change
from ._store._contract import Changes as Changes
from ._store._contract import Found as Found
from ._store._contract import Known as Known
from ._store._contract import Merged as Merged
from ._store._contract import MergeRequest as MergeRequest
from ._store._contract import MergesMany as MergesMany
from ._store._contract import Revision as Revision
from ._store._contract import Store as Store
from ._store._contract import Unchanged as Unchanged
from ._store._contract import Unreadable as Unreadable
from ._store._contract import WatchesChanges as WatchesChanges
from ._store._memory import MemoryStore as MemoryStore
from ._store._noop import NoopStore as NoopStore
from ._store._open import ENTRY_POINT_GROUP as ENTRY_POINT_GROUP
from ._store._open import open_memory as open_memory
from ._store._open import open_noop as open_noop
from ._store._open import open_store as open_store
from ._store._row_operations import AppendChange as AppendChange
from ._store._row_operations import AsyncRowDialect as AsyncRowDialect
from ._store._row_operations import ChangeRange as ChangeRange
from ._store._row_operations import ChangeRow as ChangeRow
from ._store._row_operations import FetchChanges as FetchChanges
from ._store._row_operations import FetchHeads as FetchHeads
from ._store._row_operations import FetchRecentHeads as FetchRecentHeads
from ._store._row_operations import FetchRows as FetchRows
from ._store._row_operations import InsertRow as InsertRow
from ._store._row_operations import JoinChanges as JoinChanges
from ._store._row_operations import RaceLost as RaceLost
from ._store._row_operations import ReplaceRow as ReplaceRow
from ._store._row_operations import Row as Row
from ._store._row_operations import RowDialect as RowDialect
from ._store._row_operations import RowHead as RowHead
from ._store._row_operations import RowOperation as RowOperation
from ._store._row_operations import RowWrite as RowWrite
from ._store._row_operations import Script as Script
from ._store._row_operations import WriteRows as WriteRows
from ._store._row_operations import run_script as run_script
from ._store._row_operations import run_script_async as run_script_async
from ._store._rows import RowStore as RowStore

__all__ = [
    "ENTRY_POINT_GROUP",
    "NOTHING_KNOWN",
    "Answer",
    "AnswerOrError",
    "AppendChange",
    "AsyncRowDialect",
    "Change",
    "ChangeRange",
    "ChangeRow",
    "Changes",
    "ConnectionPool",
    "Connector",
    "CorruptEntry",
    "FetchChanges",
    "FetchHeads",
    "FetchRecentHeads",
    "FetchRows",
    "Found",
    "InsertRow",
    "JoinChanges",
    "Known",
    "MemoryStore",
    "MergeRequest",
    "Merged",
    "MergesMany",
    "NoopStore",
    "NotFound",
    "PoolStatistics",
    "RaceLost",
    "ReplaceRow",
    "Revision",
    "Row",
    "RowDialect",
    "RowHead",
    "RowOperation",
    "RowStore",
    "RowWrite",
    "Script",
    "Store",
    "StoreError",
    "StoreRejected",
    "StoreUnavailable",
    "Unchanged",
    "Unreadable",
    "WatchesChanges",
    "WriteRows",
    "open_memory",
    "open_noop",
    "open_store",
    "run_script",
    "run_script_async",
]

publish(globals(), __name__)
