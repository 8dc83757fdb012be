"""
The values of a timeline, their JSON form and their merge: pure, without I/O and without Trio.
"""

from ._errors import InvalidAttribute as InvalidAttribute
from ._errors import InvalidStage as InvalidStage
from ._errors import InvalidValue as InvalidValue
from ._model._codec import decode_document as decode_document
from ._model._codec import decode_stage as decode_stage
from ._model._codec import encode_document as encode_document
from ._model._codec import encode_stage as encode_stage
from ._model._document import Document as Document
from ._model._document import Update as Update
from ._model._document import merge as merge
from ._model._json import JSONValue as JSONValue
from ._model._json import decode_object as decode_attributes
from ._model._json import encode_attributes as encode_attributes
from ._model._snapshot import Snapshot as Snapshot
from ._model._snapshot import StageNode as StageNode
from ._model._time import format_duration as format_duration
from ._model._time import format_time as format_time
from ._model._time import parse_time as parse_time
from ._model._time import to_datetime as to_datetime
from ._model._time import to_ns as to_ns
from ._model._values import NO_ACTOR as NO_ACTOR
from ._model._values import Actor as Actor
from ._model._values import Fact as Fact
from ._model._values import Finish as Finish
from ._model._values import Stage as Stage
from ._model._values import StageKey as StageKey
from ._model._values import StageRef as StageRef
from ._model._values import Start as Start
from ._model._values import Status as Status
from ._model._values import root_id as root_id
from ._model._wire import Collection as Collection
from ._public import publish

__all__ = [
    "NO_ACTOR",
    "Actor",
    "Collection",
    "Document",
    "Fact",
    "Finish",
    "InvalidAttribute",
    "InvalidStage",
    "InvalidValue",
    "JSONValue",
    "Snapshot",
    "Stage",
    "StageKey",
    "StageNode",
    "StageRef",
    "Start",
    "Status",
    "Update",
    "decode_attributes",
    "decode_document",
    "decode_stage",
    "encode_attributes",
    "encode_document",
    "encode_stage",
    "format_duration",
    "format_time",
    "merge",
    "parse_time",
    "root_id",
    "to_datetime",
    "to_ns",
]

publish(globals(), __name__)
