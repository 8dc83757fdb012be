"""
Settings of all tests.
"""

from __future__ import annotations

from hypothesis import settings

# The same examples in each run, so that a failure is one for everybody, and no folder is left behind.
settings.register_profile("deterministic", derandomize=True, database=None, deadline=None, max_examples=60)
settings.load_profile("deterministic")
