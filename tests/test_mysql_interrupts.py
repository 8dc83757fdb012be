"""
Tests of Ctrl-C where it hurts most: in the code of the event loop that a MySQL store runs on top of Trio.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio

PROGRAM = Path(__file__).with_name("mysql_interrupted.py")


@pytest.mark.parametrize("turn", [1, 2, 3, 4, 6, 9])
async def test_ctrl_c_inside_of_the_event_loop_ends_the_program_as_it_is(mysql_url: str, turn: int) -> None:
    command = [sys.executable, str(PROGRAM), mysql_url, str(turn)]
    with trio.fail_after(30):
        ended = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert (ended.returncode, ended.stderr) == (3, b"")
