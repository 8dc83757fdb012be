"""
Tests of the demo's parts where a whole play does not reach: what fails, and what a terminal shows.
"""

from __future__ import annotations

import io
import sys
from contextlib import asynccontextmanager
from functools import partial
from subprocess import PIPE
from typing import TYPE_CHECKING

import pytest
import trio

from timeline_trio import (
    Actor,
    Collection,
    Config,
    Snapshot,
    Stage,
    StoreUnavailable,
    open_manager,
    open_store,
)
from timeline_trio.demo import __main__ as command
from timeline_trio.demo._crew import Crew, dismiss
from timeline_trio.demo._drawing import Style, draw_timeline
from timeline_trio.demo._messages import Handover, Inbox, Left, Message, Orders, to_line
from timeline_trio.demo._observer import Ended, Played, is_kept, keep_refreshing, observe
from timeline_trio.demo._report import report, without_password
from timeline_trio.demo._views import Lines, Silent, Terminal, choose_style, choose_view
from timeline_trio.demo._worker import Worker
from timeline_trio.model import Document, Finish, Start, Status
from timeline_trio.store import MemoryStore
from timeline_trio.testing import FaultyStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

SECOND = 10**9
PLAIN = Style(unicode=False, colour=False)


def stage(
    name: str, begin: float, end: float | None, *, parent: str = "", actor: str = "", status: str = "succeeded"
) -> Stage:
    return Stage(
        id=name,
        name=name,
        started_at=int(begin * SECOND),
        finished_at=None if end is None else int(end * SECOND),
        status=Status.RUNNING if end is None else Status(status),
        parent_id=parent,
        actor=Actor(name=actor),
    )


def snapshot(*stages: Stage, start: float | None = 100, finish: float | None = None) -> Snapshot:
    document = Document(
        opid="op",
        start=None if start is None else Start(name="deploy", at=int(start * SECOND)),
        finish=None if finish is None else Finish(at=int(finish * SECOND), status=Status.FAILED, error="lost"),
        stages={stage.key: stage for stage in stages},
    )
    return Snapshot(document, 110 * SECOND, Collection(local_flushed=True, store_read=True))


async def played(*missing: Stage) -> Played:
    async with open_manager() as manager:
        statistics = manager.statistics()
    return Played(final=snapshot(), flushed=len(missing), missing=missing, killed="", statistics=statistics)


class Output(io.TextIOWrapper):
    """
    An output in memory that may be a terminal.
    """

    def __init__(self, *, terminal: bool = True, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    @property
    def text(self) -> str:
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode(self.encoding)


def test_each_stage_has_a_bar_below_its_parents() -> None:
    lines = draw_timeline(
        snapshot(
            stage("build", 100, 105, actor="ash"),
            stage("test", 102, 104, parent="build", actor="birch", status="failed"),
            stage("ship", 106, None, actor="ash"),
            stage("check", 104, 104, actor="ash", status="canceled"),
        ),
        110 * SECOND,
        43,
        PLAIN,
    )
    assert lines == [
        "deploy: under way, 10s; 4 stages, 1 running, 1 failed"[:43],
        "+ ash   build  ==========                5s",
        "x birch   test     ####                  2s",
        "/ ash   check          :                 0s",
        "> ash   ship               --------      4s",
    ]


def test_what_lies_outside_of_the_operation_is_drawn_at_its_edge() -> None:
    lines = draw_timeline(
        snapshot(stage("late", 120, 130), stage("early", 90, 95), finish=110), 110 * SECOND, 37, PLAIN
    )
    assert lines[1:] == ["+  early =====                     5s", "+  late                     =     10s"]


def test_where_it_is_narrow_there_are_no_bars() -> None:
    lines = draw_timeline(snapshot(stage("build", 100, 105)), 110 * SECOND, 20, PLAIN)
    assert lines == ["deploy: under way, 1", "+  build      5s"]


def test_an_operation_of_which_nothing_is_known_yet_can_be_drawn() -> None:
    assert draw_timeline(snapshot(start=None), 110 * SECOND, 80, PLAIN) == [
        ": under way, 0s; 0 stages, 0 running, 0 failed"
    ]


def test_lines_tell_each_thing_once() -> None:
    output = Output(terminal=False)
    view = Lines(output)
    view.show(snapshot(start=None))
    view.show(snapshot(stage("build", 101, None, actor="ash")))
    view.show(snapshot(stage("build", 101, None, actor="ash")))
    view.refresh()
    done = snapshot(stage("build", 101, 103, actor="ash"), stage("ship", 103, 104, actor="elm"), finish=105)
    view.show(done)
    view.show(done)
    assert output.text.splitlines() == [
        "  +1.00s  ash    build: begun",
        "  +3.00s  ash    build: succeeded in 2s",
        "  +3.00s  elm    ship: begun",
        "  +4.00s  elm    ship: succeeded in 1s",
        "  +5.00s  deploy: failed in 5s: lost",
    ]


def test_lines_begin_with_the_operations_start() -> None:
    output = Output(terminal=False)
    Lines(output).show(snapshot())
    assert output.text == "  +0.00s  deploy: begun, as op\n"


def test_a_terminal_is_drawn_over_and_keeps_the_latest_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "4")
    output = Output()
    view = Terminal(output, Style(unicode=True, colour=True))
    view.refresh()
    assert output.text == ""
    view.show(snapshot(*(stage(f"step {number}", 100 + number, None) for number in range(5)), finish=110))
    first = output.text
    assert "\x1b[36m▶  step 4 " in first
    assert "step 2" not in first
    assert first.count("\n") == 3
    view.refresh()
    assert output.text.removeprefix(first).startswith("\x1b[3Fdeploy: failed")


async def test_a_terminal_shows_that_time_passes(autojump_clock: object, monkeypatch: pytest.MonkeyPatch) -> None:
    del autojump_clock
    monkeypatch.setenv("COLUMNS", "60")
    output = Output()
    view = Terminal(output, PLAIN)
    view.show(snapshot(stage("build", 100, None)))
    with trio.move_on_after(0.25):
        await keep_refreshing(view)
    assert output.text.count("\x1b[2F") == 2


@pytest.mark.parametrize(
    ("encoding", "no_color", "style"),
    [
        ("utf-8", "", Style(unicode=True, colour=True)),
        ("utf-8", "1", Style(unicode=True, colour=False)),
        ("ascii", "", Style(unicode=False, colour=True)),
    ],
)
def test_the_style_is_what_the_terminal_can_show(
    monkeypatch: pytest.MonkeyPatch, encoding: str, no_color: str, style: Style
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", no_color)
    assert choose_style(Output(encoding=encoding)) == style


@pytest.mark.parametrize(
    ("terminal", "name", "kind"), [(True, "xterm", Terminal), (True, "dumb", Lines), (False, "xterm", Lines)]
)
def test_only_a_terminal_is_drawn_on(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool, name: str, kind: type[object]
) -> None:
    monkeypatch.setenv("TERM", name)
    assert isinstance(choose_view(Output(terminal=terminal)), kind)


def test_messages_may_come_in_any_portions() -> None:
    sent: list[Message] = [Left("ash"), Handover("release", "op;id;;"), Left("elm")]
    stream = b"".join(to_line(message) for message in sent)
    inbox = Inbox()
    received = [message for byte in stream for message in inbox.feed(bytes([byte]))]
    assert received == sent
    assert inbox.feed(stream) == sent


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        (None, False),
        (stage("build", 100, None), True),
        (stage("build", 100, 103), True),
        (stage("build", 101, 103), False),
    ],
)
def test_a_running_stage_may_have_ended_since(found: Stage | None, *, kept: bool) -> None:
    assert is_kept(stage("build", 100, None), snapshot(*([found] if found else []))) is kept


def test_an_ended_stage_must_be_as_it_was() -> None:
    assert not is_kept(stage("build", 100, 103), snapshot(stage("build", 100, None)))
    assert not is_kept(stage("build", 100, 103), snapshot(stage("build", 100, 104)))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mysql://me:secret@host/db", "mysql://me:***@host/db"),
        ("mysql://me@host/db", "mysql://me@host/db"),
        ("sqlite:////tmp/rollout.db", "sqlite:////tmp/rollout.db"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


async def test_a_worker_that_fails_ends_the_play(tmp_path: Path) -> None:
    failing = partial(Crew, command=[sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(Ended, match=r"the worker process of \w+ ended with exit code 3") as caught:
        await observe(f"sqlite:///{tmp_path}/rollout.db", 1.0, Silent(), recruit=failing)
    assert caught.value.code == 1


async def test_a_store_that_fails_at_the_end_is_no_bad_argument(tmp_path: Path) -> None:
    @asynccontextmanager
    async def open_faulty(url: str) -> AsyncGenerator[FaultyStore]:
        async with open_store(url) as inner:
            store = FaultyStore(inner)
            store.fail("read", StoreUnavailable("", "the cable was pulled"), nth=None)
            yield store

    with pytest.raises(Ended, match="the cable was pulled") as caught:
        await observe(f"sqlite:///{tmp_path}/rollout.db", 20.0, Silent(), opened=open_faulty)
    assert caught.value.code == 1


async def test_a_worker_that_does_not_listen_is_killed_in_the_end() -> None:
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            process: trio.Process = await nursery.start(
                partial(
                    trio.run_process,
                    [sys.executable, "-c", "import time; time.sleep(60)"],
                    stdin=PIPE,
                    check=False,
                )
            )
            await dismiss(process, patience=0.1)
            assert await process.wait() != 0


async def test_a_worker_claims_nothing_while_the_store_is_away() -> None:
    store = FaultyStore(MemoryStore())
    told: list[Message] = []
    orders = Orders("", "op", "ash", 1.0)
    async with open_manager(
        store, config=Config(actor=Actor(name="ash"), on_error=lambda _opid, _error: None)
    ) as manager:
        worker = Worker(manager, orders, told.append)
        manager.begin("op", "build", stage_id="build")
        manager.begin("op", "build", stage_id="build", actor=Actor(name="elm"))
        store.outage = StoreUnavailable("", "the cable was pulled")
        await worker.report()
        assert told == []
        store.outage = None
        await manager.flush("op")
        await worker.report()
        await worker.report()
    assert len(told) == 1


def test_what_was_saved_and_is_missing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    async def lose(*_: object) -> Played:
        return await played(stage("build", 100, 103, actor="ash"))

    assert command.main(["--store", "sqlite:///unused.db"], lose) == 1
    output = capsys.readouterr()
    assert output.err == "timeline_trio.demo: saved and missing: 'build' of ash\n"
    assert "  0 of 1 stages that the workers had saved are in the final read\n" in output.out


def test_on_a_terminal_the_drawing_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", Output())
    text = report(trio.run(played), "sqlite:///x.db")
    assert text.startswith("\ndeploy: unknown")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--store", "rollout.db"], "expected a URL with a scheme"),
        (["--store", ""], "expected a URL with a scheme"),
        (["--store", "http://["], "expected a URL with a scheme"),
        (["--store", "memory:"], "a memory store is of one process"),
        (["--store", "noop:"], "a noop store is of one process"),
        (["--speed", "0"], "expected a number above 0, got '0'"),
        (["--speed", "slow"], "expected a number above 0, got 'slow'"),
        (["--speed", "inf"], "expected a number above 0, got 'inf'"),
    ],
)
def test_each_bad_argument_has_its_answer(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    try:
        code: object = command.main(arguments)
    except SystemExit as end:
        code = end.code
    message = capsys.readouterr().err
    assert code == 2
    assert says in message
    assert message.count("\n") == 1


def test_a_second_ctrl_c_has_the_same_exit_code() -> None:
    async def interrupted(*_: object) -> Played:
        await trio.lowlevel.checkpoint()
        raise KeyboardInterrupt

    assert command.main(["--store", "sqlite:///unused.db"], interrupted) == 130
