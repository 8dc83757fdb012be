"""
Runs one command, and ends everything that came of it when the process that wanted it is gone.

It is run by its path, by a bare interpreter: it must import nothing of this library. PR_SET_PDEATHSIG alone would not
do: it follows the thread that started the child, which may be a worker thread long gone, it reaches no grandchildren,
and it removes no folder.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_IPC_RMID = 0
_STOPPED_OR_GONE = b"TtZX"


def processes_below(ancestor: int) -> set[int]:
    """
    Return the ids of all descendants of a process.
    """
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(entry)):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: set[int] = set()
    waiting = [ancestor]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.update(below)
        waiting += below
    return found


def freeze(ancestor: int) -> set[int]:
    """
    Stop all descendants of a process, and return their ids once no thread of them runs.
    """
    stopped: set[int] = set()
    # A process may have forked before the signal reached it, so look again until nobody is new.
    while new := processes_below(ancestor) - stopped:
        _signal(new, signal.SIGSTOP)
        for pid in new:
            while not _is_stopped(pid):
                time.sleep(0.001)
        stopped |= new
    return stopped


def thaw(ancestor: int) -> None:
    """
    Let all descendants of a process go on.
    """
    _signal(processes_below(ancestor), signal.SIGCONT)


def kill(ancestor: int) -> None:
    """
    Kill all descendants of a process, with none left to start another.
    """
    _signal(freeze(ancestor), signal.SIGKILL)


def remove(folder: Path) -> None:
    """
    Remove a server's folder, and the shared memory that a killed PostgreSQL leaves behind, which its folder names.
    """
    with suppress(OSError, IndexError, ValueError):
        segment = int((folder / "data" / "postmaster.pid").read_text().splitlines()[6].split()[1])
        ctypes.CDLL(None).shmctl(segment, _IPC_RMID, None)
    shutil.rmtree(folder, ignore_errors=True)


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _is_stopped(pid: int) -> bool:
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return True
    return all(not (fields := _stat(thread)) or fields[0] in _STOPPED_OR_GONE for thread in threads)


def _stat(process: Path) -> list[bytes]:
    try:
        text = (process / "stat").read_bytes()
    except OSError:
        return []
    return text.rpartition(b")")[2].split()  # the name before it may hold anything


# Coverage takes a file that is run by its path for no part of this package, so it cannot see what follows.
def _watch(starter: int) -> int | None:  # pragma: no cover
    """
    Return a descriptor that becomes readable when the starter ends; nothing if it has ended.
    """
    try:
        watched = os.pidfd_open(starter)
    except ProcessLookupError:
        return None
    return watched if os.getppid() == starter else None  # its number may be another's by now


def _main(starter: int, folder: Path, owner: str, command: list[str]) -> None:  # pragma: no cover
    """
    Run a command in a folder, print its process id, and stay until all that came of it is gone.

    Args:
        starter: the process whose end is the end of it.
        folder: removed at that end.
        owner: the user and the group that the command runs as, "uid:gid"; empty to change neither.
        command: the program and its arguments.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: None)
    starter_ends = _watch(starter)
    if starter_ends is None:
        remove(folder)
        return
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # so that nobody leaves the family by losing its parent
    user, group = map(int, owner.split(":")) if owner else (None, None)
    child = subprocess.Popen(  # noqa: S603 - the command of whoever runs this
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        user=user,
        group=group,
        extra_groups=None if user is None else [],
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 - there is one thread
    )
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), b"%d\n" % child.pid)
    while True:
        ready, _, _ = select.select([starter_ends, woken], [], [])
        is_over = starter_ends in ready
        if woken in ready:
            is_over = is_over or signal.SIGTERM in os.read(woken, 4096)
        if is_over:
            kill(os.getpid())
        with suppress(ChildProcessError):
            while os.waitpid(-1, 0 if is_over else os.WNOHANG) != (0, 0):
                pass
            continue
        break
    if is_over:
        remove(folder)


if __name__ == "__main__":  # pragma: no cover
    _main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
