"""
Tests of opening SQLite stores: paths, URLs, options, and files that cannot be used.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
import trio

from timeline_trio.model import InvalidValue, Stage, Update
from timeline_trio.store import NotFound, StoreUnavailable
from timeline_trio_sqlite import SCHEMA, SQLiteStore, open_sqlite, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from timeline_trio_sqlite import Journal

NOBODY = 65_534

UPDATE = Update(stages=(Stage(id="s", name="work", started_at=0),))


def pragma(path: Path, name: str) -> object:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]


def open_files(folder: Path) -> list[str]:
    targets = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sorted(target for target in targets if target.startswith(str(folder)))


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("sqlite:///ops.db", "ops.db"),
        ("sqlite:///a%20b%23%3F%25%C3%A9.db", "a b#?%\xe9.db"),
        ("sqlite:///./ops.db?synchronous=full&journal=delete&create=true", "ops.db"),
        ("sqlite:///{}/absolute.db", "absolute.db"),
        ("sqlite:////{}/absolute.db", "absolute.db"),
    ],
)
async def test_url_names_the_file(inside: Path, url: str, name: str) -> None:
    async with open_store(url.format(str(inside).lstrip("/") if "////" in url else inside)) as store:
        await store.merge("op", UPDATE)
        assert store.path.name == name
    assert (inside / name).is_file()


@pytest.mark.parametrize(
    ("url", "field", "problem"),
    [
        ("sqlite:", "path", "memory:"),
        ("sqlite://", "path", "memory:"),
        ("sqlite:///", "path", "memory:"),
        ("sqlite:///:memory:", "path", r"open_store\('memory:'\)"),
        ("sqlite:///a%00b", "path", "null character"),
        ("sqlite://ops.db", "url", r"sqlite:///relative\.db or sqlite:////absolute/path\.db, got the host 'ops\.db'"),
        ("sqlite://[x", "url", "expected sqlite:///"),
        ("sqlite:///a#b.db", "url", "write # in a path as %23"),
        ("sqlite:///%ff.db", "url", "percent-encoded UTF-8"),
        ("sqlite:///ops.db?create", "url", r"\?name=value"),
        ("sqlite:///ops.db?create=true&create=false", "url", "each option once"),
        ("sqlite:///ops.db?timeout=5", "timeout", "there are synchronous, journal and create"),
        ("sqlite:///ops.db?create=yes", "create", "expected true or false, got 'yes'"),
        ("sqlite:///ops.db?synchronous=off", "synchronous", "expected normal or full, got 'off'"),
        ("sqlite:///ops.db?journal=", "journal", "expected wal or delete, got ''"),
    ],
)
def test_bad_url_is_refused_naming_the_option(inside: Path, url: str, field: str, problem: str) -> None:
    with pytest.raises(InvalidValue, match=problem) as caught:
        open_store(url)
    assert caught.value.field == field
    assert list(inside.iterdir()) == []


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_memory_is_no_file(path: str) -> None:
    with pytest.raises(InvalidValue, match="memory:"):
        open_sqlite(path)


@pytest.mark.parametrize(("synchronous", "journal"), [("fast", "wal"), ("normal", "truncate")])
def test_bad_option_is_refused(synchronous: Any, journal: Any) -> None:
    with pytest.raises(InvalidValue, match="expected"):
        open_sqlite("ops.db", synchronous=synchronous, journal=journal)


async def test_schema_is_that_of_the_documentation(tmp_path: Path) -> None:
    path = tmp_path / "ops.db"
    async with open_sqlite(path):
        pass
    with closing(sqlite3.connect(path)) as connection:
        made = [text for (text,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL ORDER BY 1")]
        connection.executescript(SCHEMA)
    assert [text.split("(")[0].strip() for text in made] == [
        "CREATE INDEX timelines_updated ON timelines",
        "CREATE TABLE timeline_changes",
        "CREATE TABLE timelines",
    ]


@pytest.mark.parametrize("journal", ["wal", "delete"])
async def test_journal_is_the_one_asked_for(tmp_path: Path, journal: Any) -> None:
    path = tmp_path / "ops.db"
    async with open_sqlite(path, journal=journal) as store:
        await store.merge("op", UPDATE)
        assert (tmp_path / "ops.db-wal").exists() is (journal == "wal")
        assert pragma(path, "journal_mode") == journal
    assert pragma(path, "journal_mode") == journal
    other: Journal = "delete" if journal == "wal" else "wal"
    async with open_sqlite(path, journal=other):
        pass
    assert pragma(path, "journal_mode") == other


async def test_file_in_use_keeps_its_journal(tmp_path: Path) -> None:
    path = tmp_path / "ops.db"
    async with open_sqlite(path) as first, open_sqlite(path, journal="delete") as second:
        await first.merge("a", UPDATE)
        await second.merge("b", UPDATE)
        assert len(await first.mget(["a", "b"])) == 2
    assert pragma(path, "journal_mode") == "wal"


async def test_path_is_that_of_the_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    async with open_sqlite("ops.db") as store:
        monkeypatch.chdir(tmp_path / "elsewhere")
        await store.merge("op", UPDATE)
        await store.read("op")
    assert file_names(tmp_path / "elsewhere") == []


async def test_missing_table_is_answered_with_what_to_call(tmp_path: Path) -> None:
    path = tmp_path / "ops.db"
    path.touch()
    async with open_sqlite(path, create=False) as store:
        for call in (store.read("op"), store.merge("op", UPDATE), store.latest(0, 9)):
            with pytest.raises(StoreUnavailable, match=r"no table 'timelines'; call create_schema\(\)") as caught:
                await call
            assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
        await store.create_schema()
        await store.create_schema()
        with pytest.raises(NotFound):
            await store.read("op")


async def test_missing_file_is_not_created_unless_asked_for(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "ops.db", create=False) as store:
        for call in (store.read("op"), store.merge("op", UPDATE), store.create_schema()):
            with pytest.raises(StoreUnavailable, match="cannot be opened; check that its folder exists"):
                await call
    assert file_names(tmp_path) == []


async def test_missing_folder_is_named(tmp_path: Path) -> None:
    path = tmp_path / "no such folder" / "ops.db"
    with pytest.raises(StoreUnavailable, match=r"no such folder.*cannot be opened"):
        async with open_sqlite(path):
            pytest.fail("it opened")


async def test_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        async with open_sqlite(tmp_path):
            pytest.fail("it opened")


async def test_file_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("this is no database, and long enough to have a header\n" * 100)
    with pytest.raises(StoreUnavailable, match="is not an SQLite database; check the path"):
        async with open_sqlite(path):
            pytest.fail("it opened")
    assert path.read_text().startswith("this is no database")
    assert open_files(tmp_path) == []


async def test_damaged_file_is_answered_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "ops.db"
    async with open_sqlite(path, journal="delete") as store:
        for number in range(50):
            await store.merge(f"op-{number}", UPDATE)
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    async with open_sqlite(path, journal="delete", create=False) as store:
        for call in (store.read("op-1"), store.merge("op-1", UPDATE)):
            with pytest.raises(StoreUnavailable, match="is damaged; restore it from a backup"):
                await call


async def test_folding_table_is_reported_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "ops.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(SCHEMA.split(";")[0].replace("id TEXT", "id TEXT COLLATE NOCASE"))
    with pytest.raises(StoreUnavailable, match="collation NOCASE, by which different operations would share a row"):
        async with open_sqlite(path):
            pytest.fail("it opened")
    assert open_files(tmp_path) == []


@contextmanager
def no_superuser() -> Iterator[None]:
    """
    Give up the superuser's rights for a while: it may write to any file.
    """
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_file_that_may_not_be_written_is_still_read() -> None:
    with TemporaryDirectory() as folder:  # in a place that everybody may enter, which pytest's is not
        path = Path(folder) / "ops.db"
        async with open_sqlite(path, journal="delete") as store:
            await store.merge("op", UPDATE)
        path.chmod(0o444)
        path.parent.chmod(0o555)
        with no_superuser():
            async with open_sqlite(path, journal="delete", create=False) as store:
                await store.read("op")
                with pytest.raises(StoreUnavailable, match="may not be written to"):
                    await store.merge("op", Update(stages=(Stage(id="t", name="work", started_at=0),)))
        path.parent.chmod(0o755)


async def test_closing_leaves_no_file_open_and_may_be_repeated(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "ops.db") as store:
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(store.merge, f"op-{number}", UPDATE)
                nursery.start_soon(store.mget, ["op-1"])
        assert open_files(tmp_path)
        assert "open" in repr(store)
    assert open_files(tmp_path) == []
    assert file_names(tmp_path) == ["ops.db"]
    await store.aclose()
    assert "closed" in repr(store)
    for call in (store.read("op"), store.merge("op", UPDATE), store.create_schema()):
        with pytest.raises(StoreUnavailable, match="is closed"):
            await call


async def test_cancelled_closing_still_closes(tmp_path: Path) -> None:
    stores: list[SQLiteStore] = []
    with trio.CancelScope() as scope:
        async with open_sqlite(tmp_path / "ops.db") as store:
            stores.append(store)
            await store.merge("op", UPDATE)
            scope.cancel()
    assert scope.cancelled_caught
    assert open_files(tmp_path) == []
    with trio.CancelScope() as scope:
        scope.cancel()
        await stores[0].aclose()
    assert scope.cancelled_caught
