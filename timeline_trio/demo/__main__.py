"""
The demo's command.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from contextlib import ExitStack
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, cast
from urllib.parse import quote

import trio

from timeline_trio.demo._observer import Ended, observe
from timeline_trio.demo._report import report
from timeline_trio.demo._views import Silent, choose_view

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from io import TextIOWrapper

    from timeline_trio.demo._observer import Played
    from timeline_trio.demo._views import View

    Play = Callable[[str, float, View], Awaitable[Played]]

_PROGRAM: Final = "timeline_trio.demo"
_LOCAL: Final = frozenset(("memory", "noop"))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


class _Options(argparse.Namespace):
    store: str | None
    speed: float
    json: bool


def _store(url: str) -> str:
    scheme = url.partition(":")[0]
    if scheme in _LOCAL:
        raise argparse.ArgumentTypeError(f"a {scheme} store is of one process, and the demo runs five; use another")
    return url


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not (isfinite(speed) and speed > 0):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return speed


def _parse(arguments: Sequence[str] | None) -> _Options:
    parser = _Parser(
        prog=_PROGRAM,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "Play a rolling deployment over four hosts: five processes that share nothing but a store.\n"
            "One step fails, one process is killed, and the timeline shows it all."
        ),
        epilog=(
            "example:\n"
            f"  python -m {_PROGRAM} --store sqlite:///rollout.db\n\n"
            "exit codes: 0, 1 if anything saved is missing or a process failed, 2 for a bad argument or an\n"
            "unusable store, 130 after Ctrl-C"
        ),
    )
    parser.add_argument("--store", type=_store, metavar="URL", help="where to share; a new SQLite file if left out")
    parser.add_argument(
        "--speed", type=_speed, default=1.0, metavar="FACTOR", help="play so many times faster (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help="print only the final snapshot, as JSON")
    return parser.parse_args(arguments, namespace=_Options())


def _new_file(stack: ExitStack) -> str:
    folder = tempfile.mkdtemp(prefix="timeline-demo-")
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return f"sqlite:///{quote(Path(folder, 'rollout.db').as_posix())}"


def _run(options: _Options, play: Play) -> int:
    with ExitStack() as stack:
        url = _new_file(stack) if options.store is None else options.store
        try:
            played = trio.run(play, url, options.speed, Silent() if options.json else choose_view(sys.stdout))
        except Ended as end:
            print(f"{_PROGRAM}: {end}", file=sys.stderr)
            return end.code
        if options.json:
            print(played.final.to_json())
        else:
            print(report(played, url))
            stack.pop_all()  # the file that was just spoken of stays
    for stage in played.missing:
        print(f"{_PROGRAM}: saved and missing: {stage.name!r} of {stage.actor.name}", file=sys.stderr)
    return 1 if played.missing else 0


def main(arguments: Sequence[str] | None = None, play: Play = observe) -> int:
    """
    Run the demo, and return its exit code.

    Args:
        arguments: of the command line; those of this process if left out.
        play: what to run with the URL, the speed and the view.
    """
    # Of a very short stage the summary says µs, which not every output can show.
    cast("TextIOWrapper", sys.stdout).reconfigure(errors="backslashreplace")
    code = 1
    try:
        code = _run(_parse(arguments), play)
    except* KeyboardInterrupt:  # one more, while the first was being dealt with
        code = 130
    except* BrokenPipeError:  # nobody reads on, as in `... | head -5`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


if __name__ == "__main__":
    sys.exit(main())
