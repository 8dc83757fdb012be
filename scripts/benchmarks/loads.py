"""
Loads: the same step done by several workers at once, by any means, and what a round of it came to.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import trio
from harness import in_turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    Step = Callable[[], Awaitable[None]]

NAN = float("nan")


class Sample(NamedTuple):
    """
    What one round came to.

    Attributes:
        rate: steps per second, of all workers together.
        p50: seconds that half of the steps took no longer than.
        p99: the same of 99 of 100 steps.
        worst: seconds of the longest step.
        cpu: seconds of the client's CPU that a step took.
    """

    rate: float
    p50: float = NAN
    p99: float = NAN
    worst: float = NAN
    cpu: float = NAN


class Load(NamedTuple):
    """
    One thing that loads a server.

    Attributes:
        name: what the report calls it.
        run: does one round.
    """

    name: str
    run: Callable[[], Awaitable[Sample]]


class Stopwatch:
    """
    Takes the times of a round that begins now.
    """

    def __init__(self) -> None:
        self._latencies: list[float] = []
        self._began = time.perf_counter()
        self._cpu = time.process_time()

    async def repeat(self, step: Step, tickets: Iterator[object]) -> None:
        """
        Do a step for each ticket; workers that share their tickets end together.
        """
        for _ in tickets:
            began = time.perf_counter()
            await step()
            self._latencies.append(time.perf_counter() - began)

    def repeat_blocking(self, step: Callable[[], None], tickets: Iterator[object]) -> None:
        """
        Do a step that blocks for each ticket.
        """
        for _ in tickets:
            began = time.perf_counter()
            step()
            self._latencies.append(time.perf_counter() - began)

    def sample(self) -> Sample:
        """
        Return what the round came to, which ends now.
        """
        seconds, cpu = time.perf_counter() - self._began, time.process_time() - self._cpu
        count = len(self._latencies)
        p50, p99 = percentiles(self._latencies)
        return Sample(count / seconds, p50, p99, max(self._latencies), cpu / count)


class Rounds:
    """
    The samples of loads that were run in turns: figures are medians over the rounds.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._samples: dict[str, list[Sample]] = {name: [] for name in names}

    def add(self, name: str, sample: Sample) -> None:
        """
        Add a sample; each load has one a round.
        """
        self._samples[name].append(sample)

    def median(self, name: str) -> Sample:
        """
        Return the median of each figure.
        """
        return Sample(*map(statistics.median, zip(*self._samples[name], strict=True)))

    def worst(self, name: str) -> float:
        """
        Return the seconds of the longest step of all rounds.
        """
        return max(sample.worst for sample in self._samples[name])

    def ratio(self, name: str, peer: str) -> float:
        """
        Return the rate in rates of a peer: the median of each round's, since a round has one weather for both.
        """
        pairs = zip(self._samples[name], self._samples[peer], strict=True)
        return statistics.median(ours.rate / theirs.rate for ours, theirs in pairs)


async def run_loads(title: str, loads: Sequence[Load], rounds: int) -> Rounds:
    """
    Run loads in turns.

    Args:
        title: what the progress calls it.
        loads: what to run.
        rounds: how often.
    """
    results = Rounds([load.name for load in loads])
    for number, load in in_turns(loads, rounds):
        say(f"{title}: round {number} of {rounds}: {load.name}", passing=True)
        sample = await load.run()
        if number:
            results.add(load.name, sample)
    say(f"{title}: done")
    return results


async def run_on_trio(steps: Sequence[Step], count: int) -> Sample:
    """
    Run a round of `count` steps, by as many tasks as there are steps.
    """
    tickets, watch = iter(range(count)), Stopwatch()
    async with trio.open_nursery() as nursery:
        for step in steps:
            nursery.start_soon(watch.repeat, step, tickets)
    return watch.sample()


def run_in_threads(steps: Sequence[Callable[[], None]], count: int) -> Sample:
    """
    Run a round of `count` steps that block, by as many threads as there are steps.
    """
    tickets, watch = iter(range(count)), Stopwatch()
    threads = [threading.Thread(target=watch.repeat_blocking, args=(step, tickets)) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return watch.sample()


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """
    Return the median, and what 99 of 100 values do not exceed.
    """
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)]


def say(text: str, *, passing: bool = False) -> None:
    """
    Tell of the progress.

    Args:
        text: one line.
        passing: whether the next line takes its place on a terminal, and elsewhere is all that is seen.
    """
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="" if passing else "\n", file=sys.stderr, flush=True)
    elif not passing:
        print(text, file=sys.stderr, flush=True)
