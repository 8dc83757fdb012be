"""
The script of the deployment, as data: who does what, for how long, and what goes wrong.

The hosts share nothing but the store, and what one of them hands over to the others: the stage that theirs are
part of. Nobody orchestrates them; each plays its own steps, one after another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

OPERATION: Final = "deploy release 2.4"
FAILURE: Final = "checksum of web-2.4.tar does not match"
VERDICT: Final = "cedar was lost, and elm is back on the old web"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """
    One stage of one host.

    Attributes:
        name: what it is called.
        seconds: how long it takes, beside the steps in it.
        steps: the steps in it, its children.
        parallel: whether these run at the same time.
        below: the name of another host's step that is the parent; it begins when that one is handed over.
        stage_id: the stage's id where several hosts share it, "" for one of its own.
        hands_over: whether other hosts are told of it, to begin below it.
        waits_for: the hosts that must have left before it ends.
        fails: whether it ends in a failure.
    """

    name: str
    seconds: float = 0.0
    steps: tuple[Step, ...] = ()
    parallel: bool = False
    below: str = ""
    stage_id: str = ""
    hands_over: bool = False
    waits_for: frozenset[str] = frozenset()
    fails: bool = False


def _health_check(seconds: float, below: str = "") -> Step:
    return Step(name="health check", stage_id="health-check", seconds=seconds, below=below)


_RELEASE: Final = "release 2.4"
_WAVE: Final = "roll out to the rest"

VICTIM: Final = "cedar"
VICTIM_STEP: Final = "deploy web"
VICTIM_SECONDS: Final = 0.9
"""How long the victim's last step has run when its process is killed."""

PLAY: Final[dict[str, tuple[Step, ...]]] = {
    "ash": (
        Step(
            name=_RELEASE,
            hands_over=True,
            steps=(
                Step(name="fetch images", seconds=0.7),
                Step(
                    name="canary",
                    parallel=True,
                    steps=(
                        Step(name="deploy api", seconds=0.6, steps=(Step(name="migrate database", seconds=0.7),)),
                        Step(name="deploy web", seconds=0.9),
                        Step(name="deploy jobs", seconds=0.7),
                    ),
                ),
                _health_check(0.5),
                Step(name=_WAVE, hands_over=True, waits_for=frozenset(("birch", "cedar", "elm"))),
            ),
        ),
    ),
    "birch": (
        Step(name="deploy api", seconds=1.0, below=_WAVE),
        Step(name="deploy web", seconds=0.8, below=_WAVE),
        Step(name="deploy jobs", seconds=0.6, below=_WAVE),
        _health_check(0.5, below=_RELEASE),
    ),
    "cedar": (
        Step(name="deploy api", seconds=0.8, below=_WAVE),
        Step(name=VICTIM_STEP, seconds=math.inf, below=_WAVE),
    ),
    "elm": (
        Step(name="deploy api", seconds=1.2, below=_WAVE),
        Step(name="deploy web", seconds=0.6, below=_WAVE, fails=True),
        Step(name="roll back web", seconds=0.8, below=_WAVE),
        Step(name="deploy jobs", seconds=0.5, below=_WAVE),
        _health_check(0.4, below=_RELEASE),
    ),
}
