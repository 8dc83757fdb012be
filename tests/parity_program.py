"""
One of several programs that write to the same operation of a store, named by its URL: run by the tests.
"""

from __future__ import annotations

import sys

import trio

from timeline_trio import Actor, Config, open_manager, open_store
from timeline_trio.model import Finish, Stage, Start, Status, Update


def stage(stage_id: str, actor: str) -> Stage:
    return Stage(
        id=stage_id,
        name="work",
        started_at=1,
        finished_at=2,
        status=Status.FAILED,
        parent_id="parent",
        actor=Actor(id=actor, name=f"host {actor}"),
        error="no",
        code="E1",
        elapsed_ns=7,
    )


async def add_stages(url: str, actor: str) -> None:
    """
    Add five stages, one save each.
    """
    async with open_store(url) as store:
        for number in range(5):
            assert (await store.merge("op", Update(stages=(stage(f"{actor}-{number}", actor),)))).changed


async def replay(url: str, actor: str) -> None:
    """
    Say again what everybody says, and add two stages of our own.
    """
    start, finish = Start(name="deploy", at=1, live=True), Finish(at=9, status=Status.SUCCEEDED)
    shared = stage("shared", "shared")
    async with open_store(url) as store:
        for _ in range(3):
            await store.merge("op", Update(start=start, finish=finish, stages=(shared,)))
            await store.merge("op", Update(stages=(stage("a", actor), shared)))
            await store.merge("op", Update(stages=(stage("b", actor),)))


async def manage(url: str, actor: str) -> None:
    """
    Record a stage that all record, and leave the saving to the background.
    """
    async with open_store(url) as store, open_manager(store, config=Config(actor=Actor(actor))) as manager:
        with manager.stage("op", "work", stage_id="s"):
            pass


if __name__ == "__main__":
    _, task, url, actor = sys.argv
    trio.run({"add_stages": add_stages, "replay": replay, "manage": manage}[task], url, actor)
