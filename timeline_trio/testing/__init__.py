"""
What tests of programs and of stores need, without any test framework.

A suite that any Store can be tried with, a Store that fails on demand, and a clock to move.
"""

from .._public import publish
from ._check_store import check_store as check_store
from ._clock import ManualClock as ManualClock
from ._faults import Fault as Fault
from ._faults import FaultyStore as FaultyStore
from ._faults import StoreCall as StoreCall

__all__ = ["Fault", "FaultyStore", "ManualClock", "StoreCall", "check_store"]

publish(globals(), __name__)
