"""
Tests of opening PostgreSQL stores: URLs, options, and databases that cannot be used.
"""

from __future__ import annotations

import re
import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg
import pytest
import trio

from timeline_trio import open_store
from timeline_trio.model import InvalidValue
from timeline_trio.store import NotFound, StoreUnavailable, WatchesChanges
from timeline_trio_postgres import SCHEMA, PostgresStore, open_postgres
from timeline_trio_postgres import open_store as open_url
from timeline_trio_postgres._options import parse_url

from .postgres_support import connected, execute, name_of, nothing_left, rows, sessions, update, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from timeline_trio.testing.servers import PostgresServer

PAGE = Path(__file__).parent.parent / "stores" / "postgres" / "README.md"
SECRET = "s3cr3t"  # noqa: S105 - it opens nothing


def no_sessions(connection: psycopg.Connection) -> bool:
    return sessions(connection) == 0


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with nothing_left():
        yield


@pytest.mark.parametrize("scheme", ["postgres", "postgresql"])
async def test_url_opens_a_store_by_either_scheme(postgres_url: str, scheme: str) -> None:
    async with open_store(f"{scheme}{postgres_url.removeprefix('postgres')}") as store:
        assert isinstance(store, PostgresStore)
        await store.merge("op", update())
        assert await name_of(store) == "work"
    assert rows(postgres_url, "SELECT id, version FROM timelines") == [("op", 1)]


async def test_options_of_ours_and_of_libpq_stand_in_the_url(postgres_url: str) -> None:
    url = f"{postgres_url}?pool_size=2&notify=false&prepare=false&connect_timeout=7.5&application_name=billing%20app"
    async with open_store(url + "&options=-c%20TimeZone%3DAsia%2FTokyo") as store:
        assert isinstance(store, PostgresStore)
        assert not isinstance(store, WatchesChanges)
        async with trio.open_nursery() as nursery:
            for number in range(9):
                nursery.start_soon(store.merge, f"op-{number}", update())
        assert store.statistics().pool.open == 2
        assert rows(postgres_url, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'billing app'") == [
            (2,)
        ]
        assert rows(postgres_url, "SELECT count(*) FROM pg_prepared_statements") == [(0,)]


async def test_parts_open_a_store_as_well(postgres: PostgresServer, postgres_url: str) -> None:
    database = postgres_url.rpartition("/")[2]
    parts: dict[str, str | int] = {"host": "127.0.0.1", "port": postgres.port, "user": "postgres", "dbname": database}
    text = " ".join(f"{name}={value}" for name, value in parts.items())
    forms: list[str | dict[str, str | int]] = [parts, text, postgres_url]
    for conninfo in forms:
        async with open_postgres(conninfo) as store:
            await store.merge("op", update())
    assert rows(postgres_url, "SELECT id, version FROM timelines") == [("op", 1)]


@pytest.mark.parametrize(
    ("url", "field", "problem"),
    [
        (f"postgres://u:{SECRET}/x@h:5/db", "port", "from 1 to 65535; percent-encode / : and @ in a password"),
        ("postgres://h:0/db", "port", "from 1 to 65535"),
        ("postgres://a:1,b:2/db?port=1,2,3", "host", "as many hosts"),
        ("postgres://a/db?port=1,2", "host", "as many hosts"),
        ("postgres://a,b/db?hostaddr=127.0.0.1", "host", "as many hosts"),
        (f"postgres://u:{SECRET}@[x/db", "url", "expected postgres://"),
        (f"postgres://u:{SECRET}%zz@h/db", "url", "percent-encoded"),
        (f"postgres://u:{SECRET}@h/db#x", "url", "write # as %23"),
        ("postgres://h/db?pool_size", "url", r"\?name=value"),
        ("postgres://h/db?pool_size=1&pool_size=2", "url", "each option once"),
        ("postgres://h/db?poolsize=5", "poolsize", "there are connect_timeout, create, notify, pool_size"),
        ("postgres://h/db?pool_size=0", "pool_size", "a whole number, 1 or more, got 0"),
        ("postgres://h/db?pool_size=-1", "pool_size", "a whole number, 1 or more, got '-1'"),
        ("postgres://h/db?pool_size=many", "pool_size", "a whole number, 1 or more, got 'many'"),
        ("postgres://h/db?connect_timeout=0", "connect_timeout", "more than 0 and finite, got 0.0"),
        ("postgres://h/db?connect_timeout=nan", "connect_timeout", "more than 0 and finite, got nan"),
        ("postgres://h/db?connect_timeout=soon", "connect_timeout", "more than 0 and finite, got 'soon'"),
        ("postgres://h/db?create=yes", "create", "expected true or false, got 'yes'"),
        ("postgres://h/db?notify=1", "notify", "expected true or false, got '1'"),
        ("postgres://h/db?prepare=", "prepare", "expected true or false, got ''"),
        ("postgres://h/db?application_name=a%00b", "application_name", "without a null character"),
        ("postgres://h/db?schema=" + "x" * 64, "schema", "at most 63 bytes"),
        ("postgres://h/db?sslmode=foo", "sslmode", "expected disable or allow .* or verify-full, got 'foo'"),
        ("postgres://h/db?target_session_attrs=rw", "target_session_attrs", "expected any or read-write .*got 'rw'"),
        ("postgres://h/db?ssl_min_protocol_version=1.3", "ssl_min_protocol_version", "or TLSv1.3, got '1.3'"),
        ("postgres://h/db?keepalives_idle=long", "keepalives_idle", "expected a whole number, got 'long'"),
        ("postgres://h", "dbname", "expected the name of a database"),
        ("postgres://h/", "dbname", "expected the name of a database"),
    ],
)
def test_bad_url_is_refused_naming_the_option(url: str, field: str, problem: str) -> None:
    with pytest.raises(InvalidValue, match=problem) as caught:
        open_url(url)
    assert caught.value.field == field
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("option", "value"),
    [("pool_size", True), ("connect_timeout", -1), ("create", 1), ("notify", None), ("prepare", "no"), ("schema", 5)],
)
def test_bad_argument_is_refused(option: str, value: object) -> None:
    arguments: dict[str, Any] = {option: value}
    with pytest.raises(InvalidValue, match="expected") as caught:
        open_postgres("postgres://h/db", **arguments)
    assert caught.value.field == option


@pytest.mark.parametrize("conninfo", [f"password={SECRET} host", f"postgres://u:{SECRET}/x@h"])
def test_bad_conninfo_is_refused_without_its_password(conninfo: str) -> None:
    with pytest.raises(InvalidValue, match="expected") as caught:
        open_postgres(conninfo)
    assert SECRET not in str(caught.value)
    with pytest.raises(InvalidValue, match="no such option"):
        open_postgres({"hostname": "h"})


def test_conninfo_says_the_timeout_unless_the_argument_does() -> None:
    assert parse_url("postgres://h/db").connect_timeout == 5
    assert parse_url("postgres://h/db?connect_timeout=2").connect_timeout == 2
    assert "connect_timeout" not in parse_url("postgres://h/db?connect_timeout=2").parameters


async def test_password_is_in_no_text(postgres_url: str) -> None:
    url = postgres_url.replace("postgres@", f"postgres:{SECRET}@")
    assert SECRET not in repr(parse_url(url))
    async with open_store(url) as store:
        assert SECRET not in repr(store)
        assert "127.0.0.1" in repr(store)
    nowhere = url.rpartition("/")[0] + "/nowhere"
    with pytest.raises(StoreUnavailable) as caught:
        async with open_store(nowhere):
            pytest.fail("it opened")
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in str(error)
        error = error.__cause__ or error.__context__


async def test_schema_is_that_of_the_documentation(postgres_url: str) -> None:
    columns = "SELECT * FROM information_schema.columns WHERE table_name = 'timelines' ORDER BY ordinal_position"
    indexes = "SELECT indexdef FROM pg_indexes WHERE tablename = 'timelines' ORDER BY 1"
    async with open_postgres(postgres_url):
        made = [rows(postgres_url, columns), rows(postgres_url, indexes)]
    execute(postgres_url, "DROP TABLE timelines", SCHEMA)
    assert [rows(postgres_url, columns), rows(postgres_url, indexes)] == made
    assert len(made[1]) == 2


async def test_many_who_create_the_table_at_once_all_succeed(postgres_url: str) -> None:
    async def create() -> None:
        async with open_postgres(postgres_url) as store:
            await store.merge("op", update())

    async with trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(create)
    assert rows(postgres_url, "SELECT id, version FROM timelines") == [("op", 1)]


async def test_missing_table_is_answered_with_what_to_call(postgres_url: str) -> None:
    async with open_postgres(postgres_url, create=False) as store:
        assert store.statistics().pool.open == 0
        for call in (store.read("op"), store.merge("op", update()), store.latest(0, 9)):
            with pytest.raises(StoreUnavailable, match=r"no table 'timelines'.*; call create_schema\(\)") as caught:
                await call
            assert isinstance(caught.value.__cause__, psycopg.errors.UndefinedTable)
        await store.create_schema()
        await store.create_schema()
        with pytest.raises(NotFound):
            await store.read("op")
        execute(postgres_url, "DROP TABLE timelines")
        with pytest.raises(StoreUnavailable, match="no table 'timelines'"):
            await store.merge("op", update())
        execute(postgres_url, SCHEMA)
        await store.merge("op", update())


async def test_table_of_a_schema_is_its_own(postgres_url: str) -> None:
    odd = 'x"%s y'
    execute(postgres_url, 'CREATE SCHEMA "x""%s y"', "CREATE SCHEMA other")
    async with open_postgres(postgres_url, schema=odd) as one, open_postgres(postgres_url, schema="other") as two:
        await one.merge("op", update(name="one"))
        await two.merge("op", update(name="two"))
        assert [await name_of(store) for store in (one, two)] == ["one", "two"]
        assert [answer.opid for answer in await one.latest(0, 9)] == ["op"]
    with pytest.raises(StoreUnavailable, match=r"has no such schema \(3F000: no schema .*\); make it by CREATE SCHEMA"):
        async with open_postgres(postgres_url, schema="nowhere"):
            pytest.fail("it opened")


ODD = 'o"dd %s'


@pytest.fixture
def odd_url(postgres_url: str) -> Iterator[str]:
    """
    The URL of a user who may do nothing.
    """
    execute(postgres_url, 'CREATE ROLE "o""dd %s" LOGIN')
    try:
        yield postgres_url.replace("postgres@", f"{quote(ODD)}@")
    finally:
        execute(postgres_url, 'DROP OWNED BY "o""dd %s"', 'DROP ROLE "o""dd %s"')


async def remedy_of(url: str, **options: Any) -> str:
    """
    Return what a user is told to run who may not create the table.
    """
    with pytest.raises(
        StoreUnavailable, match=r"no table 'timelines', and we may not create it \(.*\); run: "
    ) as caught:
        async with open_postgres(url, **options):
            pytest.fail("it opened")
    assert isinstance(caught.value.__cause__, psycopg.Error)
    return str(caught.value).partition("; run: ")[2]


async def test_user_who_may_not_create_the_table_is_told_what_to_run(postgres_url: str, odd_url: str) -> None:
    first, _, second = (await remedy_of(odd_url)).partition(
        "; or run timeline_trio_postgres.SCHEMA as an administrator"
    )
    assert first == 'GRANT USAGE, CREATE ON SCHEMA "public" TO "o""dd %s"'
    execute(postgres_url, first)
    async with open_postgres(odd_url) as store:
        await store.merge("op", update())
        assert store.keeps_changes
    execute(postgres_url, "DROP TABLE timelines, timeline_changes", 'REVOKE CREATE ON SCHEMA public FROM "o""dd %s"')
    grants = second.removeprefix(", then ").removesuffix(", and open with create=false")
    execute(postgres_url, SCHEMA, *grants.split("; "))
    async with open_postgres(odd_url, create=False) as store:
        await store.merge("op", update())
        assert store.keeps_changes


async def test_user_who_may_not_even_use_the_schema_is_told_what_to_run(postgres_url: str, odd_url: str) -> None:
    execute(postgres_url, "REVOKE ALL ON SCHEMA public FROM PUBLIC", "CREATE SCHEMA other")
    execute(postgres_url, (await remedy_of(odd_url)).partition("; ")[0])
    async with open_postgres(odd_url) as store:
        await store.merge("op", update())
    with pytest.raises(StoreUnavailable, match=r"42501: permission denied for schema other\); run: ") as caught:
        async with open_postgres(odd_url, schema="other"):
            pytest.fail("it opened")
    assert 'GRANT USAGE ON SCHEMA "other" TO "o""dd %s"' in str(caught.value)
    execute(postgres_url, 'GRANT USAGE ON SCHEMA other TO "o""dd %s"')
    execute(postgres_url, (await remedy_of(odd_url, schema="other")).partition("; ")[0])
    async with open_postgres(odd_url, schema="other") as store:
        await store.merge("op", update())


async def test_what_a_table_lacks_is_made_where_the_table_is(postgres_url: str) -> None:
    execute(postgres_url, SCHEMA.partition(";")[0].replace(",\n    folded bigint", ""))
    async with open_postgres(postgres_url, create=False) as store:
        await store.merge("op", update())
    execute(postgres_url, "CREATE SCHEMA postgres")  # now the first one in the search path
    async with open_postgres(postgres_url) as store:
        assert store.keeps_changes
        assert await name_of(store) == "work"
    assert rows(postgres_url, "SELECT schemaname FROM pg_tables WHERE tablename LIKE 'timeline%'") == [("public",)] * 2


def blocks(language: str) -> list[str]:
    """
    Return the examples of the store's page.
    """
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


async def test_page_of_the_store_begins_with_a_program_that_runs(postgres: PostgresServer, tmp_path: Path) -> None:
    set_up, grants, schema = blocks("sql")
    assert schema == SCHEMA
    program = tmp_path / "program.py"
    url = f"postgres://app:secret@{postgres.host}:{postgres.port}/ops"
    program.write_text(blocks("python")[0].replace("postgres://app:secret@db.example.org:5432/ops", url))
    before, after = set_up.split("\\c ops\n")
    try:
        for statement in before.splitlines():
            postgres.execute(statement)
        postgres.execute(after, database="ops")
        said = await trio.run_process([sys.executable, str(program)], capture_stdout=True)
        assert b"pay" in said.stdout
        administrator = url.replace("app:secret@", "postgres@")
        execute(administrator, "DROP TABLE timelines, timeline_changes", "REVOKE CREATE ON SCHEMA public FROM app")
        execute(administrator, schema, grants)
        async with open_store(f"{url}?create=false") as store:
            await store.merge("op", update())
            assert await name_of(store) == "work"
    finally:
        postgres.execute("DROP DATABASE ops")
        postgres.execute("DROP ROLE app")


async def test_user_without_the_right_to_create_uses_the_table_that_is_there(
    postgres: PostgresServer, postgres_url: str
) -> None:
    async with open_postgres(postgres_url):
        pass
    execute(postgres_url, "CREATE ROLE plain LOGIN")
    url = postgres_url.replace("postgres@", "plain@")
    try:
        async with open_postgres(url) as store:
            with pytest.raises(
                StoreUnavailable, match=r"refuses access \(42501: permission denied for table timelines\); run: "
            ) as caught:
                await store.merge("op", update())
            statements = str(caught.value).partition("run: ")[2]
            assert statements == (
                'GRANT SELECT, INSERT, UPDATE ON timelines TO "plain"; '
                'GRANT SELECT, INSERT, DELETE ON timeline_changes TO "plain"'
            )
            execute(postgres_url, *statements.split("; "))
            await store.merge("op", update())
            await store.merge("op", update("t"))
            assert await name_of(store) == "work"
    finally:
        execute(postgres_url, "DROP OWNED BY plain", "DROP ROLE plain")
    del postgres


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (["DROP COLUMN version", "DROP COLUMN updated_at"], "timelines lacks version, updated_at; if it is another"),
        (["RENAME COLUMN payload TO content"], "timelines lacks payload"),
        (["DROP CONSTRAINT timelines_pkey"], r"timelines has no unique index on \(id\)"),
        (["DROP CONSTRAINT timelines_pkey", "ADD PRIMARY KEY (id, version)"], "no unique index"),
        (
            ["DROP CONSTRAINT timelines_pkey", "ADD PRIMARY KEY (id) DEFERRABLE"],
            r"constraint on \(id\) that is DEFERRABLE",
        ),
        (["ADD UNIQUE (id) DEFERRABLE"], r"constraint on \(id\) that is DEFERRABLE"),
        (['ADD COLUMN "o""dd" int NOT NULL'], 'has the column "o""dd", which is NOT NULL'),
        (["ADD COLUMN other filled"], 'has the column "other", which is NOT NULL'),
        (["ALTER COLUMN folded SET NOT NULL"], 'has the column "folded", which is NOT NULL'),
        (["ALTER COLUMN folded SET DEFAULT 0"], "folded has a default"),
        (["ALTER COLUMN folded TYPE int"], "folded has the type int4"),
    ],
)
async def test_table_that_would_refuse_each_row_is_refused_with_the_ddl_to_run(
    postgres_url: str, changes: list[str], problem: str
) -> None:
    execute(
        postgres_url, "CREATE DOMAIN filled AS text NOT NULL", SCHEMA, *(f"ALTER TABLE timelines {c}" for c in changes)
    )
    for create in (True, False):
        with pytest.raises(StoreUnavailable, match=problem) as caught:
            async with open_postgres(postgres_url, create=create) as store:
                await store.read("op")
    statement = str(caught.value).partition("run: ")[2]
    if "filled" in changes[0]:
        statement = "ALTER TABLE timelines ALTER COLUMN other SET DEFAULT ''"
    if "content" in changes[0]:
        execute(postgres_url, "ALTER TABLE timelines DROP COLUMN content")
    execute(postgres_url, statement)
    async with open_postgres(postgres_url) as store:
        await store.merge("op", update())
        assert await name_of(store) == "work"


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE UNIQUE INDEX ON timelines (lower(id))",
        "CREATE UNIQUE INDEX ON timelines (id) WHERE version > 1",
        "CREATE UNIQUE INDEX ON timelines (id COLLATE folding)",
        "CREATE INDEX ON timelines (id)",
    ],
)
async def test_index_that_does_not_tell_ids_apart_is_none(postgres_url: str, statement: str) -> None:
    execute(
        postgres_url,
        "CREATE COLLATION folding (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        SCHEMA,
        "ALTER TABLE timelines DROP CONSTRAINT timelines_pkey",
        statement,
    )
    with pytest.raises(StoreUnavailable, match=r"no unique index on \(id\); run: CREATE UNIQUE INDEX ON timelines"):
        async with open_postgres(postgres_url):
            pytest.fail("it opened")


async def test_columns_and_indexes_of_the_applications_own_are_no_hindrance(postgres_url: str) -> None:
    execute(
        postgres_url,
        SCHEMA,
        "ALTER TABLE timelines DROP CONSTRAINT timelines_pkey",
        "CREATE UNIQUE INDEX ON timelines (id) INCLUDE (version)",
        "ALTER TABLE timelines ADD a int, ADD b int NOT NULL DEFAULT 1, ADD c bigint GENERATED ALWAYS AS IDENTITY",
        "ALTER TABLE timelines ADD d text NOT NULL GENERATED ALWAYS AS (id || '!') STORED",
    )
    async with open_postgres(postgres_url) as store:
        await store.merge("op", update())
        await store.merge("op", update("t"))
    assert rows(postgres_url, "SELECT version, b, d FROM timelines") == [(2, 1, "op!")]


async def test_partitioned_table_serves(postgres_url: str) -> None:
    create, _, rest = SCHEMA.partition(";")
    execute(
        postgres_url,
        f"{create} PARTITION BY HASH (id){';'}{rest}",
        "CREATE TABLE even PARTITION OF timelines FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
        "CREATE TABLE odd PARTITION OF timelines FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
    )
    async with open_postgres(postgres_url) as store:
        for number in range(9):
            await store.merge(f"op-{number}", update())
            await store.merge(f"op-{number}", update("t"))
        assert len(await store.latest(0, 99)) == 9


@pytest.mark.parametrize("schema", ["", "other"])
async def test_view_is_refused(postgres_url: str, schema: str) -> None:
    execute(
        postgres_url,
        "CREATE SCHEMA other",
        SCHEMA.replace("timelines", "t"),
        f"CREATE VIEW {schema or 'public'}.timelines AS TABLE t",
    )
    spoken = '"other"."timelines"' if schema else "timelines"
    with pytest.raises(StoreUnavailable, match=f"{spoken} is no table; rename .*by the option schema"):
        async with open_postgres(postgres_url, schema=schema):
            pytest.fail("it opened")


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ("DROP CONSTRAINT timeline_changes_pkey", "no unique index on (id, incarnation, version); run: "),
        ("ALTER COLUMN version TYPE int", "timeline_changes.version has the type int4; run: "),
        ("ALTER COLUMN payload TYPE jsonb", "timeline_changes.payload has the type jsonb; run: "),
        ("ALTER COLUMN id TYPE varchar(20)", "timeline_changes.id takes 20 characters, where 191 are needed; run: "),
        ("ADD COLUMN other int NOT NULL", 'the column "other", which is NOT NULL'),
    ],
)
async def test_table_of_changes_that_does_not_serve_is_as_good_as_none(
    postgres_url: str, changes: str, remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    execute(postgres_url, SCHEMA, f"ALTER TABLE timeline_changes {changes}")
    async with open_postgres(postgres_url) as store:
        await store.merge("op", update())
        assert not store.keeps_changes
        assert remedy in caplog.text
    execute(postgres_url, caplog.text.strip().partition("run: ")[2])
    async with open_postgres(postgres_url) as store:
        assert store.keeps_changes


@pytest.mark.parametrize(
    ("column", "problem", "ddl"),
    [
        ("id varchar(20)", "id takes 20 characters, where 191 are needed", 'TYPE text COLLATE "C"'),
        ("payload varchar(9999)", "payload takes 9999 characters, where there must be no limit", "TYPE json USING .*"),
        ("id text COLLATE folding", "id has a collation by which different operations", 'TYPE text COLLATE "C"'),
        ("id varchar(191) COLLATE folding", "id has a collation", 'TYPE text COLLATE "C"'),
        ("id char(191)", "id has the type bpchar", 'TYPE text COLLATE "C"'),
        ("payload jsonb", "payload has the type jsonb", "TYPE json USING payload::text::json"),
        ("version int", "version has the type int4", "TYPE bigint"),
        ("created_at timestamp", "created_at has the type timestamp", "TYPE timestamptz"),
        ("updated_at timestamptz(3)", "updated_at rounds to 3 decimals", "TYPE timestamptz"),
    ],
)
async def test_table_that_would_not_keep_what_it_is_given_is_refused_with_the_ddl_to_run(
    postgres_url: str, column: str, problem: str, ddl: str
) -> None:
    name = column.split(maxsplit=1)[0]
    changed = "\n".join(
        f"{column} {'NOT NULL PRIMARY KEY' if name == 'id' else 'NOT NULL'}{',' if line.endswith(',') else ''}"
        if line.strip().startswith(f"{name} ")
        else line
        for line in SCHEMA.partition(";")[0].splitlines()
    )
    assert changed != SCHEMA.partition(";")[0]
    execute(
        postgres_url,
        "CREATE COLLATION folding (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        changed,
    )
    for create in (True, False):
        with pytest.raises(StoreUnavailable, match=problem) as caught:
            async with open_postgres(postgres_url, create=create) as store:
                await store.read("op")
        statement = str(caught.value).partition("run: ")[2]
        assert re.search(f"{ddl}$", statement)
    execute(postgres_url, statement)
    async with open_postgres(postgres_url) as store:
        await store.merge("op", update())
        assert await name_of(store) == "work"


async def test_citext_is_refused(postgres_url: str) -> None:
    if not rows(postgres_url, "SELECT 1 FROM pg_available_extensions WHERE name = 'citext'"):
        pytest.skip("the extension citext is not installed; on Debian, the package postgresql brings it")
    execute(postgres_url, "CREATE EXTENSION citext", SCHEMA.replace('text COLLATE "C"', "citext"))
    with pytest.raises(StoreUnavailable, match="id has the type citext; run: ALTER TABLE"):
        async with open_postgres(postgres_url):
            pytest.fail("it opened")


async def test_text_columns_and_another_collation_serve_in_the_order_of_bytes(postgres_url: str) -> None:
    execute(
        postgres_url,
        SCHEMA.replace('text COLLATE "C"', 'varchar(191) COLLATE "en-x-icu"').replace("payload json", "payload text"),
    )
    async with open_postgres(postgres_url, clock=lambda: 5_000_000) as store:
        for opid in ("a", "B", "b", "A", "\xe4"):
            await store.merge(opid, update())
        assert [answer.opid for answer in await store.latest(0, 9)] == ["\xe4", "b", "a", "B", "A"]


async def test_table_without_a_unique_id_is_answered_with_the_ddl_to_run(postgres_url: str) -> None:
    async with open_postgres(postgres_url) as store:
        execute(postgres_url, "ALTER TABLE timelines DROP CONSTRAINT timelines_pkey")
        with pytest.raises(StoreUnavailable, match=r"no unique index on the ids \(42P10: .*\); run: ") as caught:
            await store.merge("op", update())
        execute(postgres_url, str(caught.value).partition("run: ")[2])
        await store.merge("op", update())


async def test_database_of_another_encoding_is_refused(postgres: PostgresServer, postgres_url: str) -> None:
    name = f"{postgres_url.rpartition('/')[2]}_latin"
    postgres.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0")
    url = postgres.database_url(name)
    try:
        with pytest.raises(StoreUnavailable, match=r"has the encoding LATIN1.*ENCODING 'UTF8'"):
            async with open_postgres(url):
                pytest.fail("it opened")
    finally:
        postgres.drop_database(url)


async def test_unknown_database_is_told_in_the_servers_words(postgres: PostgresServer) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        async with open_postgres(postgres.database_url("nowhere")):
            pytest.fail("it opened")
    assert str(caught.value) == (
        f'postgres@127.0.0.1:{postgres.port}/nowhere could not be connected to: database "nowhere" does not exist'
    )
    assert isinstance(caught.value.__cause__, psycopg.OperationalError)


async def test_too_many_connections_are_told_in_the_servers_words(postgres_url: str) -> None:
    execute(postgres_url, "CREATE ROLE limited LOGIN CONNECTION LIMIT 1", SCHEMA, "GRANT ALL ON timelines TO limited")
    url = postgres_url.replace("postgres@", "limited@")
    try:
        async with open_postgres(url) as store, open_postgres(url, create=False) as other:
            await store.merge("op", update())
            with pytest.raises(StoreUnavailable, match='too many connections for role "limited"'):
                await other.read("op")
            await name_of(store)
            await store.aclose()
            with connected(postgres_url) as connection:
                await wait_until(partial(no_sessions, connection))
            assert await name_of(other) == "work"
    finally:
        execute(postgres_url, "DROP OWNED BY limited", "DROP ROLE limited")


async def test_host_that_does_not_exist_is_named() -> None:
    with pytest.raises(StoreUnavailable, match=r"u@nowhere\.invalid:5432/db could not be looked up; check host"):
        async with open_postgres("postgres://u@nowhere.invalid:5432/db"):
            pytest.fail("it opened")


async def test_nobody_listens_on_the_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(StoreUnavailable) as caught:
        async with open_postgres(f"postgres://u@127.0.0.1:{port}/db"):
            pytest.fail("it opened")
    assert str(caught.value) == f"u@127.0.0.1:{port}/db could not be connected to: Connection refused"
    hosts = f"127.0.0.1:{port},127.0.0.2:{port}"
    with pytest.raises(StoreUnavailable, match=f'{hosts}/db could not .*: server at "127.0.0.2", port {port}: Conn'):
        async with open_postgres(f"postgres://u@{hosts}/db"):
            pytest.fail("it opened")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgres://u@h/db", "u@h:5432/db"),
        ("postgres://u@[::1]:5/db", "u@[::1]:5/db"),
        ("postgres://u@a:1,b:2/db", "u@a:1,b:2/db"),
        ("postgres://u@a,b/db?port=7", "u@a:7,b:7/db"),
        ("postgres:///db?host=/tmp&user=u", "u@/tmp:5432/db"),
        ("postgres://u@%2Ftmp/db", "u@/tmp:5432/db"),
        ("postgres://u@/db", "u@[local]:5432/db"),
        ("postgres:///?service=ops", "[local]/the service ops"),
    ],
)
def test_database_is_called_by_user_and_address(url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PGHOST", "PGHOSTADDR", "PGPORT", "PGUSER", "PGDATABASE", "PGSERVICE"):
        monkeypatch.delenv(variable, raising=False)
    assert parse_url(url).name == name


def test_environment_may_name_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGDATABASE", "ops")
    assert parse_url("postgres://u@h").name == "u@h:5432/ops"


async def test_next_host_is_tried_while_the_first_one_says_nothing(postgres: PostgresServer, postgres_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mute = silent.getsockname()[1]
        hosts = f"127.0.0.1:{mute},localhost:{postgres.port}"
        url = postgres_url.replace(f"127.0.0.1:{postgres.port}", hosts)
        began = trio.current_time()
        async with open_postgres(url, connect_timeout=1.5) as store:
            await store.merge("op", update())
        assert 0.3 < trio.current_time() - began < 1.5


async def test_host_that_says_nothing_is_given_up_in_time(postgres_url: str) -> None:
    del postgres_url
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgres://u@127.0.0.1:{silent.getsockname()[1]}/db"
        with pytest.raises(StoreUnavailable, match=r"did not accept a connection within 0.2 s"):
            async with open_postgres(url, connect_timeout=0.2):
                pytest.fail("it opened")
        with trio.move_on_after(0.2) as scope:
            async with open_postgres(url):
                pytest.fail("it opened")
        assert scope.cancelled_caught


async def test_socket_in_the_file_system_serves(postgres: PostgresServer, postgres_url: str) -> None:
    database = postgres_url.rpartition("/")[2]
    parts: dict[str, str | int] = {"host": str(postgres.folder), "port": postgres.port, "user": "postgres"}
    async with open_postgres(parts | {"dbname": database}) as store:
        await store.merge("op", update())
        assert await name_of(store) == "work"
    async with open_store(f"postgres:///{database}?host={postgres.folder}&port={postgres.port}&user=postgres") as store:
        assert await name_of(store) == "work"


async def test_closing_may_be_repeated_and_refuses_calls(postgres_url: str) -> None:
    async with open_postgres(postgres_url) as store:
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(store.merge, f"op-{number}", update())
        assert "open" in repr(store)
        assert store.statistics().pool.idle == 4
    await store.aclose()
    assert "closed" in repr(store)
    for call in (store.read("op"), store.merge("op", update()), store.create_schema()):
        with pytest.raises(StoreUnavailable, match="is closed"):
            await call


async def test_cancelled_closing_still_closes(postgres_url: str) -> None:
    stores: list[PostgresStore] = []
    with trio.CancelScope() as scope:
        async with open_postgres(postgres_url) as store:
            stores.append(store)
            await store.merge("op", update())
            scope.cancel()
    assert scope.cancelled_caught
    assert stores[0].statistics().pool.open == 0
    with trio.CancelScope() as scope:
        scope.cancel()
        await stores[0].aclose()
    assert scope.cancelled_caught
