"""
Programs of our own in processes of their own, which talk in lines.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Program:
    """
    One that runs.
    """

    def __init__(self, process: trio.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input = process.stdin
        self._output = process.stdout
        self._read = b""

    async def ask(self, line: str) -> str:
        """
        Send a line, and return the next one that it says.
        """
        await self._input.send_all(f"{line}\n".encode())
        return await self.line()

    async def line(self) -> str:
        """
        Return the next line that it says.
        """
        while b"\n" not in self._read:
            some = await self._output.receive_some()
            if not some:
                raise EOFError("the program has ended; what it printed tells why")
            self._read += some
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    async def aclose(self) -> None:
        """
        Close its input and its output.
        """
        await self._input.aclose()
        await self._output.aclose()


@asynccontextmanager
async def start_program(name: str, *arguments: str) -> AsyncGenerator[Program]:
    """
    Start a program of this folder, wait until it says `ready`, and end it.
    """
    command = [sys.executable, str(Path(__file__).with_name(name)), *arguments]
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    program = Program(process)
    try:
        assert await program.line() == "ready"
        yield program
    finally:
        process.kill()
        with trio.CancelScope(shield=True):  # it is dead, and must not be left to others
            await process.wait()
            await program.aclose()
