"""
Tests of opening MySQL stores: URLs, options, tables that would lose something, and what opening does to the process.
"""

from __future__ import annotations

import ssl
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from timeline_trio.model import InvalidValue
from timeline_trio.store import StoreUnavailable, open_store
from timeline_trio.testing.servers import start_mariadb
from timeline_trio_mysql import SCHEMA, MySQLAddress, MySQLStore, open_mysql, open_mysql_on
from timeline_trio_mysql import open_store as open_mysql_store
from timeline_trio_mysql._options import parse_url

from .mysql_support import account, address_of, application_pool, ask, event_loop, opening, stored, update

if TYPE_CHECKING:
    from timeline_trio.testing.servers import MySQLServer

ADDRESS = MySQLAddress(database="ops", user="me", password="hush-hush")  # noqa: S106 - nobody's
PAGE = Path(__file__).parent.parent / "stores" / "mysql" / "README.md"


def test_url_says_it_all() -> None:
    options = parse_url(
        "mysql://m%40e:p%3A%2F%3F%23%20%C3%A9@db.example:3307/o%2Fps?pool_size=8&create=false&connect_timeout=2.5"
        "&unix_socket=%2Frun%2Fmysqld.sock&ssl=true"
    )
    address = options.address
    assert (address.user, address.password, address.host) == ("m@e", "p:/?# \xe9", "db.example")
    assert (address.port, address.database, address.unix_socket) == (3307, "o/ps", "/run/mysqld.sock")
    assert address.ssl is not None
    assert address.ssl.verify_mode is ssl.CERT_REQUIRED
    assert address.ssl.check_hostname
    assert (options.pool_size, options.create, options.connect_timeout) == (8, False, 2.5)


def test_url_needs_a_user_and_a_database_only() -> None:
    assert parse_url("mysql://me@/ops").address == MySQLAddress(database="ops", user="me")
    assert parse_url("mysql://me@[::1]/ops").address.name == "me@[::1]:3306/ops"
    unverified = parse_url("mysql://me@h/ops?ssl=unverified").address.ssl
    assert unverified is not None
    assert unverified.verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    ("url", "field", "problem"),
    [
        ("mysql:", "url", "expected mysql://user:password@host:port/database"),
        ("mysql://h/ops", "url", "expected mysql://user"),
        ("mysql://me@h", "database", "expected a name"),
        ("mysql://me@h:port/ops", "url", "expected mysql://"),
        ("mysql://me@h:0/ops", "port", "expected 1 to 65535"),
        ("mysql://me@h/ops#x", "url", "%23"),
        ("mysql://me:hush?hush@h/ops", "url", "%3F"),
        ("mysql://me@h/%ff", "url", "percent-encoded"),
        ("mysql://me@h/o%00ps", "database", "control characters"),
        ("mysql://me@h/ops?create", "url", r"\?name=value"),
        ("mysql://me@h/ops?create=true&create=false", "url", "each option once"),
        ("mysql://me@h/ops?charset=utf8", "charset", "there are connect_timeout, create, pool_size, ssl, unix_socket"),
        ("mysql://me@h/ops?create=yes", "create", "expected true or false, got 'yes'"),
        ("mysql://me@h/ops?pool_size=0", "pool_size", "1 or more, got 0"),
        ("mysql://me@h/ops?pool_size=many", "pool_size", "1 or more, got 'many'"),
        ("mysql://me@h/ops?connect_timeout=soon", "connect_timeout", "expected seconds"),
        ("mysql://me@h/ops?connect_timeout=inf", "connect_timeout", "finite"),
        ("mysql://me@h/ops?ssl=maybe", "ssl", "expected false, true, unverified, or the path"),
        ("mysql://me@h/ops?ssl=/no/such.pem", "ssl", "cannot be used"),
    ],
)
def test_bad_url_is_refused_naming_the_option_and_no_password(url: str, field: str, problem: str) -> None:
    with pytest.raises(InvalidValue, match=problem) as caught:
        open_mysql_store(url)
    assert caught.value.field == field
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("address", {"address": "mysql://me@h/ops"}),
        ("database", {"address": MySQLAddress(database="", user="me")}),
        ("user", {"address": MySQLAddress(database="ops", user="")}),
        ("host", {"address": MySQLAddress(database="ops", user="me", host="")}),
        ("host", {"address": MySQLAddress(database="ops", user="me", host="a\nb")}),
        ("password", {"address": MySQLAddress(database="ops", user="me", password=5)}),  # type: ignore[arg-type]
        ("port", {"address": MySQLAddress(database="ops", user="me", port=70_000)}),
        ("ssl", {"address": MySQLAddress(database="ops", user="me", ssl=True)}),  # type: ignore[arg-type]
        ("pool_size", {"pool_size": True}),
        ("connect_timeout", {"connect_timeout": 0}),
    ],
)
def test_bad_argument_is_refused_naming_it(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as caught:
        open_mysql(**({"address": ADDRESS} | options))
    assert caught.value.field == field


@pytest.mark.parametrize("pool", [None, ADDRESS, "mysql://me@h/ops"])
def test_what_is_no_pool_of_the_drivers_is_refused(pool: Any) -> None:
    with pytest.raises(InvalidValue, match="trio_asyncio"):
        open_mysql_on(pool)


def test_password_is_shown_nowhere() -> None:
    shown = f"{ADDRESS!r} {ADDRESS} {parse_url('mysql://me:hush-hush@h/ops')!r}"
    assert "hush" not in shown
    assert "<MySQLAddress me@127.0.0.1:3306/ops>" in shown


async def test_store_opens_by_its_scheme_and_tells_how_it_is_doing(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        assert isinstance(store, MySQLStore)
        await store.merge("op", update())
        statistics = store.statistics()
        assert (statistics.merges, statistics.attempts, statistics.connections.open) == (1, 1, 1)
        assert "MySQLStore of root@127.0.0.1" in repr(store)


async def test_closed_store_refuses_calls(mysql_url: str) -> None:
    async with opening(mysql_url) as store:
        await store.merge("op", update())
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.read("op")
        await store.aclose()
    async with application_pool(mysql_url) as pool:
        async with open_mysql_on(pool) as store:
            await stored(store)
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.read("op")
        async with open_mysql_on(pool, create=False) as store:
            await stored(store)
            assert store.statistics().connections.open == 1


async def test_schema_is_made_once_and_makes_the_table(mysql_server: MySQLServer, mysql_url: str) -> None:
    async with opening(mysql_url) as store:
        await store.create_schema()
    await ask(mysql_server, SCHEMA, mysql_url)
    async with opening(mysql_url):
        pass
    assert await ask(mysql_server, "SHOW TABLES", mysql_url) == [["timeline_changes"], ["timelines"]]
    assert f"```sql\n{SCHEMA}```" in PAGE.read_text(encoding="utf-8")


async def test_schemas_are_made_by_many_at_once(mysql_url: str) -> None:
    async def open_and_merge(number: int) -> None:
        async with opening(mysql_url, pool_size=1) as store:
            await store.merge("op", update(str(number)))

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(open_and_merge, number)
    async with opening(mysql_url) as store:
        assert len((await stored(store)).stages) == 8


async def test_without_create_nothing_is_asked_for_before_the_first_call(mysql_url: str) -> None:
    async with opening(mysql_url, create=False) as store:
        assert store.statistics().connections.open == 0
        with pytest.raises(StoreUnavailable, match=r"no table 'timelines'; call create_schema\(\) once"):
            await store.read("op")
        await store.create_schema()
        await store.merge("op", update())


GOOD = {
    "id": "VARCHAR(191) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL",
    "payload": "LONGTEXT CHARACTER SET utf8mb4 NOT NULL",
    "version": "BIGINT NOT NULL",
    "created_at": "DATETIME(6) NOT NULL",
    "updated_at": "DATETIME(6) NOT NULL",
    "key": "PRIMARY KEY (id)",
    "engine": "InnoDB",
}


def definition(changes: dict[str, str]) -> str:
    parts = GOOD | changes
    engine = parts.pop("engine")
    key = parts.pop("key")
    columns = [f"{name} {type_}" for name, type_ in parts.items() if type_]
    return f"CREATE TABLE timelines ({', '.join([*columns, key] if key else columns)}) ENGINE = {engine}"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"id": "VARCHAR(191) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL"},
            "utf8mb4_general_ci, by which",
        ),
        (
            {"id": "VARCHAR(191) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci NOT NULL"},
            "utf8mb4_unicode_ci, by which",
        ),
        ({"id": "VARCHAR(191) CHARACTER SET latin1 COLLATE latin1_bin NOT NULL"}, "the collation latin1_bin"),
        ({"id": "BIGINT NOT NULL"}, "the type bigint"),
        ({"id": "VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"}, "takes 100 characters"),
        ({"key": "PRIMARY KEY (id, version)"}, "primary key of timelines is not the id alone"),
        ({"key": ""}, "primary key of timelines is not the id alone"),
        ({"payload": "LONGTEXT CHARACTER SET latin1 NOT NULL"}, "longtext in latin1"),
        ({"payload": "TEXT CHARACTER SET utf8mb4 NOT NULL"}, "text in utf8mb4"),
        ({"payload": "LONGBLOB NOT NULL"}, "longblob"),
        ({"updated_at": "DATETIME NOT NULL"}, "do not both keep microseconds"),
        ({"created_at": "TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)"}, "do not both keep microseconds"),
        ({"engine": "MyISAM"}, "the engine MyISAM, without transactions"),
        ({"version": "TINYINT NOT NULL"}, "timelines.version is tinyint"),
        ({"folded": "INT NULL"}, "timelines.folded is int,"),
        ({"folded": "BIGINT NOT NULL DEFAULT 0"}, "timelines.folded is not NULL by default"),
        ({"folded": "BIGINT NULL DEFAULT 0"}, "timelines.folded is not NULL by default"),
        ({"key": "PRIMARY KEY (id), UNIQUE KEY `o``nce` (created_at)"}, "the unique index o`nce of timelines"),
        ({"key": "PRIMARY KEY (id), UNIQUE KEY start (id(9), version)"}, "the unique index start of timelines"),
        ({"tenant": "VARCHAR(9) NOT NULL"}, "timelines.tenant must be given a value"),
        ({"noted_at": "DATETIME(3) NOT NULL"}, "timelines.noted_at must be given a value"),
    ],
)
async def test_table_that_would_lose_or_mix_up_documents_is_refused_with_what_to_run(
    mysql_server: MySQLServer, mysql_url: str, changes: dict[str, str], problem: str
) -> None:
    await ask(mysql_server, definition(changes), mysql_url)
    with pytest.raises(StoreUnavailable, match=problem) as caught:
        async with opening(mysql_url):
            pass
    async with opening(mysql_url, create=False) as store:
        with pytest.raises(StoreUnavailable, match=problem):
            await store.merge("op", update())
        remedy = str(caught.value).partition("run: ")[2]
        await ask(mysql_server, remedy, mysql_url)
        await store.merge("op", update())  # by the same store, once it is mended
        assert set((await stored(store)).stages) == {("s", "")}


async def test_table_without_a_column_is_refused(mysql_server: MySQLServer, mysql_url: str) -> None:
    await ask(mysql_server, definition({"version": ""}), mysql_url)
    with pytest.raises(StoreUnavailable, match="without the column 'version'"):
        async with opening(mysql_url):
            pass


@pytest.mark.parametrize(
    "changes",
    [
        {"payload": "JSON NOT NULL"},
        {"payload": "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL"},
        {"key": "PRIMARY KEY (id), UNIQUE KEY both_of (version, id)"},
        {
            "tenant": "VARCHAR(9) NOT NULL DEFAULT ''",
            "number": "BIGINT NOT NULL AUTO_INCREMENT, KEY (number)",
            "kind": "ENUM('a', 'b') NOT NULL",
            "next": "BIGINT AS (version + 1) VIRTUAL",
            "sum": "INT NOT NULL DEFAULT (1 + 1)",
        },
    ],
)
async def test_other_good_tables_are_served(mysql_server: MySQLServer, mysql_url: str, changes: dict[str, str]) -> None:
    await ask(mysql_server, definition(changes), mysql_url)
    async with opening(mysql_url) as store:
        await store.merge("op", update())


async def test_account_with_no_right_to_create_uses_the_table_that_is_there(
    mysql_server: MySQLServer, mysql_url: str
) -> None:
    database = address_of(mysql_url).database
    writer = address_of(mysql_url, user="writer", password="p'\xe4\u4e16")  # noqa: S106 - of a test's server
    with account(mysql_server, "writer", "IDENTIFIED BY 'p''\xe4\u4e16'"):
        with pytest.raises(
            StoreUnavailable, match=rf"/{database} is a database that the user may not enter.*'writer'@'127.0.0.1' to"
        ):
            async with open_mysql(writer):
                pass
        await ask(mysql_server, f"GRANT SELECT ON {database}.* TO writer@'127.0.0.1'")
        with pytest.raises(StoreUnavailable, match=r"nor may the account make it; run timeline_trio_mysql\.SCHEMA"):
            async with open_mysql(writer):
                pass
        await ask(mysql_server, SCHEMA, mysql_url)
        async with open_mysql(writer) as store:
            with pytest.raises(StoreUnavailable, match=f"GRANT SELECT, INSERT, UPDATE ON `{database}`") as caught:
                await store.merge("op", update())
            assert "INSERT command denied" in str(caught.value)
            await ask(mysql_server, statements_of(caught.value))
            await store.merge("op", update())
            await store.merge_many([])


def statements_of(error: StoreUnavailable) -> str:
    """
    Return what a message tells to run, as an administrator pastes it.
    """
    told = str(error).rpartition("run: ")[2]
    return told[: told.rindex(";") + 1]


async def test_account_that_may_only_write_is_told_what_to_grant(mysql_server: MySQLServer, mysql_url: str) -> None:
    app = address_of(mysql_url, user="app")
    await ask(mysql_server, SCHEMA, mysql_url)
    with account(mysql_server, "app", may=f"INSERT ON {app.database}.*"):
        async with open_mysql(app) as store:
            with pytest.raises(StoreUnavailable, match=r"run: GRANT .* TO 'app'@.*SELECT command denied") as caught:
                await store.merge("op", update())
            await ask(mysql_server, statements_of(caught.value))
            await store.merge("op", update())


async def test_account_that_may_not_create_is_told_what_to_grant(mysql_server: MySQLServer, mysql_url: str) -> None:
    app = address_of(mysql_url, user="app")
    with account(mysql_server, "app", may=f"SELECT, INSERT, UPDATE ON {app.database}.*"):
        with pytest.raises(StoreUnavailable, match=r"CREATE.* TO 'app'@'127\.0\.0\.1';.*CREATE command den") as caught:
            async with open_mysql(app):
                pass
        await ask(mysql_server, statements_of(caught.value))
        async with open_mysql(app) as store:
            await store.merge("op", update())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"user": "nobody", "password": "hush-hush"}, "refuses the user; check its name and password"),
        ({"database": "nowhere"}, "does not have the database; create it"),
        ({"port": 1}, "cannot be reached; check the address"),
        ({"unix_socket": "/nowhere/socket"}, "cannot be reached: no such socket; check the path unix_socket"),
        ({"host": "no-such-host.invalid"}, "cannot be reached: its host name is not known here"),
    ],
)
async def test_server_that_cannot_be_used_is_told_of(mysql_url: str, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(StoreUnavailable, match=problem) as caught:
        async with open_mysql(address_of(mysql_url, **changes)):
            pass
    assert caught.value.__cause__ is not None
    assert "hush" not in f"{caught.value} {caught.value.__cause__}"


async def test_store_opens_by_name_and_by_socket(mysql_server: MySQLServer, mysql_url: str) -> None:
    async with open_mysql(address_of(mysql_url, host="localhost")) as store:
        await store.merge("op", update())
    socket = str(mysql_server.folder / "socket")
    async with open_mysql(address_of(mysql_url, unix_socket=socket)) as store:
        await stored(store)


def certificate(folder: Path) -> tuple[Path, Path]:
    """
    Make a certificate of 127.0.0.1 that vouches for itself.
    """
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)  # noqa: S603
    return folder / "cert.pem", folder / "key.pem"


def test_connection_is_encrypted_and_verified_as_asked(tmp_path: Path, mysql_server: MySQLServer) -> None:
    if not mysql_server.is_mariadb:
        pytest.skip("Oracle MySQL makes certificates of its own")
    cert, key = certificate(tmp_path)

    async def main(url: str) -> None:
        with pytest.raises(StoreUnavailable, match="add ssl=true"):
            async with open_store(url):
                pass
        with pytest.raises(StoreUnavailable, match=r"certificate that is not trusted here; .*ssl=PATH") as caught:
            async with open_store(f"{url}?ssl=true"):
                pass
        assert "CERTIFICATE_VERIFY_FAILED" in repr(caught.value.__cause__)
        with pytest.raises(StoreUnavailable, match="certificate for another name; connect by the name that is in it"):
            async with open_store(f"{url.replace('127.0.0.1', 'localhost')}?ssl={cert}"):
                pass
        for how in ("unverified", str(cert)):
            async with open_mysql_store(f"{url}?ssl={how}") as store:
                await store.merge("op", update())
                await store.read("op")

    options = [f"--ssl-cert={cert}", f"--ssl-key={key}", "--require-secure-transport=ON"]
    with start_mariadb(options=options) as server:
        trio.run(main, server.url)


def test_server_without_tls_is_told_of(mysql_server: MySQLServer) -> None:
    if not mysql_server.is_mariadb:
        pytest.skip("Oracle MySQL makes certificates of its own")

    async def main(url: str) -> None:
        with pytest.raises(StoreUnavailable, match="does not agree on TLS; if it has none, leave the option ssl out"):
            async with open_store(f"{url}?ssl=unverified"):
                pass

    with start_mariadb(options=["--skip-ssl"]) as server:
        trio.run(main, server.url)


def run_python(code: str, *options: str) -> str:
    done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_import_leaves_asyncio_as_it_is() -> None:
    run_python(
        "import asyncio, sys\n"
        "before = type(asyncio.get_event_loop_policy())\n"
        "import timeline_trio_mysql\n"
        "assert 'trio_asyncio' not in sys.modules\n"
        "assert type(asyncio.get_event_loop_policy()) is before\n",
        "-W",
        "error",
    )


def test_opening_warns_of_nothing(mysql_url: str) -> None:
    run_python(
        "import sys, trio\n"
        "from timeline_trio_mysql import open_store\n"
        "async def main():\n"
        f"    async with open_store({mysql_url!r}) as store:\n"
        "        await store.latest(0, 9)\n"
        "trio.run(main)\n"
        "assert 'trio_asyncio' in sys.modules\n",
        "-W",
        "error",
    )


def test_python_that_the_bridge_does_not_run_on_is_refused_by_name() -> None:
    printed = run_python(
        "import sys\n"
        "from timeline_trio_mysql import open_store\n"
        "sys.version_info = (3, 14, 0, 'final', 0)\n"
        "try:\n"
        "    open_store('mysql://me@h/ops')\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    assert printed.startswith("python: the MySQL store needs a Python older than 3.14")


async def test_error_of_the_block_comes_out_as_it_was_raised(mysql_url: str) -> None:
    raised: list[BaseException] = [
        KeyError("ours"),
        ExceptionGroup("ours", [KeyError("a"), ValueError("b")]),
        ExceptionGroup("ours", [ExceptionGroup("too", [KeyError("a")])]),
        KeyboardInterrupt(),
    ]
    for error in raised:
        with pytest.raises(type(error)) as caught:
            async with opening(mysql_url):
                raise error
        assert caught.value is error
    with trio.CancelScope() as scope:
        async with opening(mysql_url) as store:
            scope.cancel()
            await store.read("op")
    assert scope.cancelled_caught


async def test_application_may_have_an_event_loop_open_and_tasks_outside_of_ours(mysql_url: str) -> None:
    async with (
        trio.open_nursery() as outer,
        event_loop(),
        opening(mysql_url) as store,
        opening(mysql_url) as second,
    ):
        done = trio.Event()

        async def merge_from_outside() -> None:
            await store.merge("op", update("a"))
            await second.merge("op", update("b"))
            done.set()

        outer.start_soon(merge_from_outside)
        await done.wait()
        assert len((await stored(store)).stages) == 2
