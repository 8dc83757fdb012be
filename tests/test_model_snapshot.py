"""
Tests of snapshots: order, queries, trees and the summary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from timeline_trio.model import (
    NO_ACTOR,
    Actor,
    Collection,
    Document,
    Finish,
    Snapshot,
    Stage,
    StageNode,
    Start,
    Status,
    Update,
    merge,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

SECOND = 10**9
BOTH = Collection(local_flushed=True, store_read=True)


def stage(  # noqa: PLR0913 - each test names what it is about
    stage_id: str,
    name: str = "work",
    *,
    at: int = 0,
    until: int | None = None,
    status: Status = Status.SUCCEEDED,
    parent: str = "",
    actor: Actor = NO_ACTOR,
    error: str = "",
    elapsed: int | None = None,
) -> Stage:
    return Stage(
        id=stage_id,
        name=name,
        started_at=at * SECOND,
        finished_at=None if until is None else until * SECOND,
        status=Status.RUNNING if until is None else status,
        parent_id=parent,
        actor=actor,
        error=error,
        elapsed_ns=None if elapsed is None else elapsed * SECOND,
        attributes_json='{"secret":1}',
        code="secret",
    )


def snapshot(
    *stages: Stage, start: Start | None = None, finish: Finish | None = None, collection: Collection = BOTH
) -> Snapshot:
    document, _ = merge(Document(opid="op"), Update(start=start, finish=finish, stages=stages))
    return Snapshot(document, 100 * SECOND, collection)


def walk(nodes: Iterable[StageNode]) -> list[StageNode]:
    found = list(nodes)
    for node in found:
        found.extend(node.children)
    return found


def outline(nodes: Iterable[StageNode]) -> list[object]:
    """
    Return ids, with a question mark for an orphan, and below an id that has children those of the children.
    """
    names = [(node.stage.id + "?" * node.orphan, node.children) for node in nodes]
    return [(name, outline(children)) if children else name for name, children in names]


def test_stages_are_ordered_by_start_id_and_actor() -> None:
    read = snapshot(
        stage("b", at=2), stage("c", at=1), stage("a", at=2, actor=Actor("2")), stage("a", at=2, actor=Actor("1"))
    )
    assert [s.key for s in read.stages] == [("c", ""), ("a", "id:1"), ("a", "id:2"), ("b", "")]


def test_running_stages_keep_the_order() -> None:
    read = snapshot(stage("b", at=2), stage("a", at=3), stage("c", at=1, until=5))
    assert [s.id for s in read.running_stages()] == ["b", "a"]
    assert snapshot().running_stages() == ()


def test_latest_failed_stage_finished_last() -> None:
    failed, canceled = Status.FAILED, Status.CANCELED
    assert snapshot().latest_failed_stage() is None
    assert snapshot(stage("a", until=9), stage("b")).latest_failed_stage() is None
    read = snapshot(stage("a", until=5, status=failed), stage("b", until=7, status=canceled), stage("c", until=9))
    assert read.latest_failed_stage() == read.stage("b")
    tied = snapshot(
        stage("a", until=7, status=failed, actor=Actor("9")),
        stage("b", until=7, status=failed, actor=Actor("1")),
        stage("b", until=7, status=failed, actor=Actor("2")),
    )
    assert tied.latest_failed_stage() == tied.stage("b", "id:2")


def test_stage_is_found_by_id_and_actor() -> None:
    read = snapshot(stage("a"), stage("a", actor=Actor("1"), at=3), stage("b", actor=Actor("1")))
    assert read.stage("a") == read.stage("a", "") == stage("a")
    assert read.stage("a", "id:1") == stage("a", actor=Actor("1"), at=3)
    assert read.stage("nope") is None
    assert read.stage("b", "") is None
    assert read.named("work") == read.stages
    assert read.named("other") == ()


def test_duration_of_the_operation_ends_at_its_finish_or_at_the_capture() -> None:
    start = Start(name="n", at=40 * SECOND)
    assert snapshot().duration == 0
    assert snapshot(finish=Finish(at=1, status=Status.FAILED)).duration == 0
    assert snapshot(start=start).duration == 60 * SECOND
    assert snapshot(start=start, finish=Finish(at=30 * SECOND, status=Status.FAILED)).duration == -10 * SECOND


def test_duration_of_a_stage_prefers_the_monotonic_length() -> None:
    read = snapshot(stage("a", at=90), stage("b", at=10, until=20), stage("c", at=10, until=20, elapsed=3))
    assert [read.stage_duration(s) for s in (read.stages[2], *read.stages[:2])] == [
        10 * SECOND,
        10 * SECOND,
        3 * SECOND,
    ]


def test_values_of_the_operation_are_those_of_the_document() -> None:
    start = Start(name="deploy", at=1, attributes_json='{"a":1}')
    read = snapshot(start=start, finish=Finish(at=2, status=Status.FAILED, error="no"))
    assert (read.opid, read.root_id, read.name) == ("op", "operation:op", "deploy")
    assert (read.started_at, read.finished_at, read.status, read.error) == (1, 2, Status.FAILED, "no")
    assert read.attributes == {"a": 1}
    assert repr(read).startswith("<Snapshot 'op' failed, 0 stages (0 running)")


def test_snapshots_are_equal_by_value() -> None:
    assert snapshot(stage("a")) == snapshot(stage("a"))
    assert snapshot(stage("a")) != snapshot(stage("b"))
    assert snapshot() != "op"
    assert len({snapshot(stage("a")), snapshot(stage("a"))}) == 1


def test_children_stand_below_their_parents() -> None:
    read = snapshot(stage("child", at=2, parent="top"), stage("top", at=1), stage("grandchild", parent="child"))
    assert outline(read.tree()) == [("top", [("child", ["grandchild"])])]


def test_root_id_as_a_parent_makes_no_orphan() -> None:
    read = snapshot(stage("a", parent="operation:op"), stage("b", parent="gone"), stage("c"))
    assert outline(read.tree()) == ["a", "b?", "c"]


def test_late_parent_takes_its_orphans_back() -> None:
    early = snapshot(stage("b", parent="a"), stage("c", parent="b"))
    assert outline(early.tree()) == [("b?", ["c"])]
    late = snapshot(stage("b", parent="a"), stage("c", parent="b"), stage("a", actor=Actor("1"), at=9))
    assert outline(late.tree()) == [("a", [("b", ["c"])])]


def test_cycle_of_parents_is_cut_once() -> None:
    two = snapshot(stage("a", parent="b"), stage("b", parent="a"))
    assert outline(two.tree()) == [("a?", ["b"])]
    three = snapshot(stage("a", parent="c"), stage("b", parent="a"), stage("c", parent="b"), stage("d", at=-1))
    assert outline(three.tree()) == ["d", ("a?", [("b", ["c"])])]


def test_stage_below_a_cycle_stays_below_it() -> None:
    read = snapshot(stage("x", at=-1, parent="a"), stage("a", parent="b"), stage("b", parent="a"))
    assert outline(read.tree()) == [("a?", ["x", "b"])]


def test_children_stand_below_the_first_of_several_parents() -> None:
    read = snapshot(stage("p", at=2), stage("p", at=1, actor=Actor("1")), stage("c", at=3, parent="p"))
    (first, second) = read.tree()
    assert (first.stage.actor.id, [node.stage.id for node in first.children]) == ("1", ["c"])
    assert second.children == ()


def placed_stage(stage_id: str, parent: str, actor: Actor, at: int) -> Stage:
    return stage(stage_id, parent="" if parent == stage_id else parent, actor=actor, at=at)


placed_stages = st.builds(
    placed_stage,
    st.sampled_from("abcdef"),
    st.sampled_from(("", "operation:op", "gone", *"abcdefabcdef")),
    st.sampled_from((NO_ACTOR, Actor("1"), Actor("2"))),
    st.integers(0, 3),
)


@given(st.lists(placed_stages, max_size=12, unique_by=lambda placed: placed.key))
def test_tree_holds_each_stage_exactly_once(stages: list[Stage]) -> None:
    read = snapshot(*stages)
    forest = read.tree()
    nodes = walk(forest)
    assert sorted(node.stage.key for node in nodes) == sorted(s.key for s in stages)
    owners = {s.id: s for s in reversed(read.stages)}
    for node in nodes:
        assert all(child.stage.parent_id == node.stage.id and not child.orphan for child in node.children)
    for top in forest:
        parent = owners.get(top.stage.parent_id)
        assert top.orphan is (top.stage.parent_id not in {"", "operation:op"})
        assert parent is None or leads_back_to(top.stage, owners)


def leads_back_to(stage: Stage, owners: dict[str, Stage]) -> bool:
    above = stage
    for _ in owners:
        if above.parent_id not in owners:
            return False
        above = owners[above.parent_id]
        if above is stage:
            return True
    return False


def test_chain_longer_than_the_stack_is_a_tree() -> None:
    chain = [stage(str(number), parent=str(number - 1) if number else "") for number in range(5_000)]
    assert len(walk(snapshot(*chain).tree())) == 5_000


def test_summary_is_this_text() -> None:
    read = snapshot(
        stage("1", "fetch", at=0, until=2),
        stage("2", "build", at=1, until=9, elapsed=3, status=Status.FAILED, error="exit code 2"),
        stage("3", "test", at=70),
        stage("3", "test", at=71, until=72, actor=Actor("i-1", "host"), status=Status.CANCELED, error="stop"),
        stage("3", "test", at=72, until=73, actor=Actor("i-2")),
        start=Start(name="deploy", at=0),
        finish=Finish(at=90 * SECOND, status=Status.FAILED, error="no luck"),
        collection=Collection(local_flushed=True, store_read=False),
    )
    expected = (
        "deploy: failed, 1m30s: no luck\n"
        "  fetch: succeeded, 2s\n"
        "  build: failed, 3s: exit code 2\n"
        "  test (no actor): running, 30s\n"
        "  test (host): canceled, 1s: stop\n"
        "  test (i-2): succeeded, 1s\n"
        "local_flushed=true store_read=false"
    )
    assert read.summary() == read.summary() == expected
    assert "secret" not in read.summary()


def test_summary_is_broken_or_forged_by_no_name_and_no_text() -> None:
    read = snapshot(
        stage("1", "fetch\n  build: succeeded, 1s", at=0, until=1, status=Status.FAILED, error="\x1b[1A\r\u2028x"),
        stage("1", "fetch", at=1, until=2, actor=Actor("", "host\x85")),
        start=Start(name="deploy\n", at=0),
        finish=Finish(at=SECOND, status=Status.FAILED, error="a\nlocal_flushed=true store_read=true"),
    )
    assert read.summary().splitlines() == [
        r"deploy\n: failed, 1s: a\nlocal_flushed=true store_read=true",
        r"  fetch\n  build: succeeded, 1s (no actor): failed, 1s: \x1b[1A\r\u2028x",
        r"  fetch (host\x85): succeeded, 1s",
        "local_flushed=true store_read=true",
    ]


def test_summary_of_nothing_has_its_two_lines() -> None:
    assert snapshot().summary() == "operation: unknown, 0s\nlocal_flushed=true store_read=true"


def test_late_unresolved_children_are_in_the_summary() -> None:
    assert "  orphan: running, 1m40s\n" in snapshot(stage("x", "orphan", parent="gone")).summary()
