"""
Tests of opening Redis stores: URLs, options, clients of the application, and servers that cannot be used.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import coredis
import pytest
import trio
from coredis.connection import TCPConnection, TCPLocation
from coredis.pool import ConnectionPool

from timeline_trio import WrongProcess, open_manager
from timeline_trio.model import InvalidValue, Update
from timeline_trio.store import StoreUnavailable
from timeline_trio.store import open_store as open_by_scheme
from timeline_trio.testing.servers import start_redis
from timeline_trio_redis import open_redis, open_store

from .redis_support import known, raw_client, stage, stages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from timeline_trio.testing.servers import RedisCluster, RedisServer

PASSWORD = "p@ss:w/rd#%"  # noqa: S105 - of a server that lives for one test
PAGE = Path(__file__).parent.parent / "stores" / "redis" / "README.md"
QUOTED = "p%40ss%3Aw%2Frd%23%25"


@pytest.mark.parametrize(
    ("url", "field", "problem"),
    [
        ("redis:", "url", "redis://user:password@host:port/number"),
        ("redis://", "url", "redis://user:password@host:port/number"),
        ("redis://:hush@", "url", "redis://user:password@host:port/number"),
        ("http://host", "url", "redis://user:password@host:port/number"),
        ("redis://[x", "url", "percent-encoded"),
        ("redis://u:hush@host:port", "url", "percent-encoded"),
        ("redis://u:hush@host:0", "url", "redis://user:password@host:port/number"),
        ("redis://host/db", "url", "the path is the number of a database"),
        ("redis://host/-1", "url", "the path is the number of a database"),
        ("redis://u:hu#sh@host", "url", "expected redis://|percent-encoded"),
        ("redis://host#x", "url", "write # in a password as %23"),
        ("redis://u:%ff@host", "url", "percent-encoded UTF-8"),
        ("redis://host?prefix", "url", r"\?name=value"),
        ("redis://host?prefix=a&prefix=b", "url", "each option once"),
        ("redis://host?db=1", "db", "there are ca_file, cluster, expire_after, prefix, timeout"),
        ("redis://host?cluster=yes", "cluster", "expected true or false, got 'yes'"),
        ("redis://host/1?cluster=true", "url", "a cluster has the database 0 only"),
        ("redis://host?ca_file=x", "ca_file", "only rediss://"),
        ("redis://host?prefix=", "prefix", "1 to 100 characters"),
        ("redis://host?prefix=a%7Bb", "prefix", "without braces"),
        ("redis://host?expire_after=soon", "expire_after", "a number of seconds, got 'soon'"),
        ("redis://host?expire_after=0", "expire_after", "from a millisecond"),
        ("redis://host?expire_after=1e12", "expire_after", "from a millisecond"),
        ("redis://host?expire_after=nan", "expire_after", "finite"),
        ("redis://host?timeout=0", "timeout", "more than 0"),
        ("redis://host?timeout=inf", "timeout", "finite"),
    ],
)
def test_bad_url_is_refused_naming_the_option(url: str, field: str, problem: str) -> None:
    with pytest.raises(InvalidValue, match=problem) as caught:
        open_store(url)
    assert caught.value.field == field
    assert "hu" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"prefix": ""}, "prefix"),
        ({"prefix": "a\n"}, "prefix"),
        ({"prefix": 5}, "prefix"),
        ({"expire_after": True}, "expire_after"),
        ({"expire_after": "5"}, "expire_after"),
        ({"timeout": -1}, "timeout"),
        ({"overlap": float("nan")}, "overlap"),
    ],
)
def test_bad_option_is_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        open_redis("redis://host", **options)
    assert caught.value.field == field


def test_options_of_the_store_are_arguments_of_open_redis() -> None:
    with pytest.raises(InvalidValue, match="there are ca_file, cluster"):
        open_redis("redis://host?prefix=a")


@pytest.mark.parametrize("server", [None, 5, object()])
async def test_what_is_no_server_is_refused(server: Any) -> None:
    with pytest.raises(InvalidValue, match=r"a URL, a coredis\.Redis or a RedisCluster"):
        async with open_redis(server):
            pass


def test_importing_the_package_does_not_import_the_driver() -> None:
    program = "import sys, timeline_trio_redis; sys.exit('coredis' in sys.modules or 'anyio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0  # noqa: S603 - our own


async def test_url_names_prefix_and_expiry(redis_server: RedisServer, redis_url: str) -> None:
    async with open_by_scheme(f"{redis_url}?prefix=ops&expire_after=1000&timeout=3") as store:
        await store.merge("op", stages(stage("a")))
        assert "'ops'" in repr(store)
    assert int(redis_server.execute("PTTL", "{ops:b43}:op:op")) > 0


async def test_url_names_the_database(redis_server: RedisServer, redis_url: str) -> None:
    async with open_store(f"{redis_url.removesuffix('/0')}/3") as store:
        await store.merge("op", stages(stage("a")))
    assert redis_server.execute("DBSIZE") == "0"
    async with open_store(redis_url) as other:
        assert await other.mget(["op"]) == []


@pytest.fixture(scope="module")
def guarded_server() -> Iterator[RedisServer]:
    """
    A server that asks for a password.
    """
    with start_redis() as server:
        server.execute("CONFIG", "SET", "requirepass", PASSWORD)
        yield server


@pytest.mark.parametrize(
    ("login", "problem"),
    [("", "asks for a password"), (":wrong@", "refuses the user or the password"), (f"nobody:{QUOTED}@", "refuses")],
)
async def test_login_that_fails_says_what_to_do(guarded_server: RedisServer, login: str, problem: str) -> None:
    with pytest.raises(StoreUnavailable, match=problem) as caught:
        async with open_store(f"redis://{login}{guarded_server.host}:{guarded_server.port}"):
            pass
    assert caught.value.__cause__ is not None
    assert QUOTED not in str(caught.value)


@pytest.mark.parametrize("user", ["", "default"])
async def test_login_with_any_password(guarded_server: RedisServer, user: str) -> None:
    async with open_store(f"redis://{user}:{QUOTED}@{guarded_server.host}:{guarded_server.port}") as store:
        assert (await store.merge(f"op-{user}", stages(stage("a")))).changed
        for secret in (QUOTED, PASSWORD):
            assert secret not in repr(store)


async def test_user_without_the_keys_is_told(redis_server: RedisServer, redis_url: str) -> None:
    redis_server.execute("ACL", "SETUSER", "guest", "on", ">secret", "~other:*", "+@all")
    try:
        with pytest.raises(
            StoreUnavailable, match="does not let this user touch the keys; a user for the store alone needs"
        ):
            async with open_store(redis_url.replace("redis://", "redis://guest:secret@")):
                pass
    finally:
        redis_server.execute("ACL", "DELUSER", "guest")


@pytest.mark.parametrize(
    ("command", "named"), [("exists", "run EXISTS"), ("evalsha", "run EVALSHA"), ("zadd", "run (a command|ZADD)")]
)
async def test_user_without_a_command_is_told_which(
    redis_server: RedisServer, redis_url: str, command: str, named: str
) -> None:
    redis_server.execute("ACL", "SETUSER", "guest", "on", ">secret", "~*", "&*", "+@all", f"-{command}")
    try:
        with pytest.raises(StoreUnavailable, match=f"does not let this user {named}; a user for the store alone needs"):
            async with open_store(redis_url.replace("redis://", "redis://guest:secret@")) as store:
                await store.merge("op", stages(stage("a")))
    finally:
        redis_server.execute("ACL", "DELUSER", "guest")


@pytest.mark.parametrize("prefix", ["timeline", "ops*:[x]", 'my "ops"\\'])
async def test_line_of_the_message_allows_all_that_is_needed_and_no_more(
    redis_server: RedisServer, redis_url: str, prefix: str
) -> None:
    redis_server.execute("ACL", "SETUSER", "guest", "on", ">secret")
    url = redis_url.replace("redis://", "redis://guest:secret@")
    try:
        with pytest.raises(StoreUnavailable, match="does not let this user run EXISTS") as caught:
            async with open_redis(url, prefix=prefix):
                pass
        line = str(caught.value).partition("needs: ")[2]
        redis_server.execute(*shlex.split(line.replace("<user>", "guest")))
        async with open_redis(url, prefix=prefix, expire_after=1000) as store, open_redis(url, prefix=prefix) as other:
            async with store.watch() as changes:
                await store.merge("op", Update(stages=(stage("a"),), writer="w", sequence=1))
                assert (await anext(changes)).opid == "op"
            await other.merge("op", stages(stage("b")))
            redis_server.execute("DEL", *redis_server.execute("KEYS", "*:op:op").split("\r\n")[2:3])
            assert await store.latest(0, 9) == []
            await store.merge("op", stages(stage("a")))
            await store.read("op")
            await store.delete("op")
        with pytest.raises(StoreUnavailable, match="touch the keys"):
            async with open_redis(url, prefix="ops-x"):
                pass
    finally:
        redis_server.execute("ACL", "DELUSER", "guest")


async def test_line_of_the_message_is_enough_on_a_cluster(redis_cluster: RedisCluster, redis_cluster_url: str) -> None:
    url = redis_cluster_url.replace("redis://", "redis://guest:secret@")
    line = line_of_the_page(cluster=True).replace("PASSWORD", "secret").replace(" app ", " guest ")
    try:
        for node in redis_cluster.nodes:
            node.execute(*line.split())
        async with open_redis(url) as store, store.watch() as changes:
            await store.merge("op", stages(stage("a")))
            assert (await anext(changes)).opid == "op"
    finally:
        for node in redis_cluster.nodes:
            node.execute("ACL", "DELUSER", "guest")


async def test_line_of_the_page_is_enough(redis_server: RedisServer, redis_url: str) -> None:
    redis_server.execute(*line_of_the_page().replace("PASSWORD", "secret").replace(" app ", " guest ").split())
    try:
        async with (
            open_store(redis_url.replace("redis://", "redis://guest:secret@")) as store,
            store.watch() as changes,
        ):
            await store.merge("op", stages(stage("a")))
            assert (await anext(changes)).opid == "op"
    finally:
        redis_server.execute("ACL", "DELUSER", "guest")


def line_of_the_page(*, cluster: bool = False) -> str:
    (line,) = (line for line in PAGE.read_text().splitlines() if line.startswith("ACL SETUSER"))
    return f"{line} +cluster|slots" if cluster else line


async def test_user_who_may_not_publish_still_saves(redis_server: RedisServer, redis_url: str) -> None:
    redis_server.execute("ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", "resetchannels")
    try:
        async with open_store(redis_url.replace("redis://", "redis://mute:secret@")) as store:
            assert (await store.merge("op", stages(stage("a")))).changed
            assert (await known(store)).revision.version == 1
            with pytest.raises(StoreUnavailable, match="by polling only; allow &timeline:changes to hear of them"):
                async with store.watch():
                    pass
    finally:
        redis_server.execute("ACL", "DELUSER", "mute")


async def test_server_that_is_not_there_is_told_at_once(free_port: int) -> None:
    with pytest.raises(StoreUnavailable, match=f"redis://127.0.0.1:{free_port} cannot be reached") as caught:
        async with open_store(f"redis://127.0.0.1:{free_port}"):
            pass
    assert caught.value.__cause__ is not None


@pytest.fixture
def free_port() -> int:
    """
    A port that nobody listens on.
    """
    with start_redis() as server:
        return server.port


async def test_frozen_server_is_given_up_in_time(redis_server: RedisServer, redis_url: str) -> None:
    redis_server.freeze()
    began = trio.current_time()
    with pytest.raises(StoreUnavailable, match=r"did not answer in time|cannot be reached"):
        async with open_store(f"{redis_url}?timeout=0.5"):
            pass
    assert trio.current_time() - began < 3
    redis_server.thaw()


async def test_opening_can_be_cancelled(redis_server: RedisServer, redis_url: str) -> None:
    redis_server.freeze()
    began = trio.current_time()
    with trio.move_on_after(0.2) as scope:
        async with open_store(redis_url):
            pass
    assert scope.cancelled_caught
    assert trio.current_time() - began < 3
    redis_server.thaw()


async def test_node_of_a_cluster_is_told_apart_from_one_server(redis_cluster_url: str, redis_url: str) -> None:
    async def use_one_node() -> None:
        async with open_store(redis_cluster_url.removesuffix("?cluster=true")) as store:
            for number in range(20):
                await store.merge(f"op-{number}", stages(stage("a")))

    with pytest.raises(StoreUnavailable, match=r"put \?cluster=true into the URL"):
        await use_one_node()
    with pytest.raises(StoreUnavailable, match="is not part of a cluster; leave cluster=true out"):
        async with open_store(f"{redis_url}?cluster=true"):
            pass


@pytest.mark.parametrize(
    ("commands", "undo", "problem"),
    [
        ([("REPLICAOF", "127.0.0.1", "1")], [("REPLICAOF", "NO", "ONE")], "may not be written to"),
        ([("CONFIG", "SET", "maxmemory", "1")], [("CONFIG", "SET", "maxmemory", "0")], "out of memory"),
        (
            [("CONFIG", "SET", "min-replicas-to-write", "1")],
            [("CONFIG", "SET", "min-replicas-to-write", "0")],
            "too few replicas",
        ),
    ],
)
async def test_server_that_refuses_writes_says_why_and_serves_again_later(
    redis_server: RedisServer,
    redis_url: str,
    commands: list[tuple[str, ...]],
    undo: list[tuple[str, ...]],
    problem: str,
) -> None:
    async with open_redis(redis_url) as store:
        await store.merge("op", stages(stage("a")))
        try:
            for command in commands:
                redis_server.execute(*command)
            with pytest.raises(StoreUnavailable, match=problem) as caught:
                await store.merge("op", stages(stage("b")))
            assert caught.value.__cause__ is not None
            assert set((await known(store)).document.stages) == {("a", "")}
        finally:
            for command in undo:
                redis_server.execute(*command)
        assert (await store.merge("op", stages(stage("b")))).revision == (await known(store)).revision


async def test_loading_server_says_so() -> None:
    # The delay slows down loading alone, by so many microseconds a key.
    options = ["--key-load-delay", "5000", "--loading-process-events-interval-bytes", "1024"]
    with start_redis(options=options) as server:
        async with open_redis(server.url) as store:
            for number in range(100):
                await store.merge(f"op-{number}", stages(stage("a")))
            server.execute("SAVE")
            seen: list[str] = []
            await trio.to_thread.run_sync(server.kill)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, server.restart)
                with trio.fail_after(20):
                    while True:
                        try:
                            merged = await store.merge("op-1", stages(stage("b")))
                            break
                        except StoreUnavailable as error:
                            seen.append(str(error))
                            await trio.sleep(0.01)
            assert any("is loading its data" in text for text in seen)
            assert merged.revision is not None
            assert merged.revision.version == 2


async def test_client_of_the_application_is_used_and_left_open(redis_server: RedisServer, redis_url: str) -> None:
    async with coredis.Redis.from_url(redis_url, db=4, decode_responses=True, encoding="latin-1") as client:
        async with open_redis(client) as store:
            await store.merge("\xf6p", stages(stage("\N{GRINNING FACE}")))
            assert set((await known(store, "\xf6p")).document.stages) == {("\N{GRINNING FACE}", "")}
        assert await client.ping() == "PONG"
        assert await client.dbsize() == 4
    assert redis_server.execute("DBSIZE") == "0"


async def test_cluster_client_of_the_application_is_used(redis_cluster: RedisCluster, redis_cluster_url: str) -> None:
    node = redis_cluster.nodes[0]
    async with coredis.RedisCluster(node.host, node.port) as client, open_redis(client) as store:
        for number in range(20):
            await store.merge(f"op-{number}", stages(stage("a")))
        assert len(await store.latest(0, 50)) == 20
    for stream in client.connection_pool.cluster_layout._error_stream:  # noqa: SLF001 - the driver forgets to
        stream.close()


class ImpossibleConnection(TCPConnection):
    """
    A connection that cannot be made.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        del arguments, settings
        raise TypeError("no such setting")


async def test_client_whose_connections_cannot_be_made_is_told() -> None:
    pool = ConnectionPool(connection_class=ImpossibleConnection, location=TCPLocation("localhost", 1))
    with pytest.raises(StoreUnavailable, match="the cause tells more") as caught:
        async with open_redis(coredis.Redis(connection_pool=pool)):
            pass
    assert isinstance(caught.value.__cause__, TypeError)


async def test_client_of_a_sentinel_is_refused() -> None:
    client = coredis.Sentinel([TCPLocation("localhost", 26_379)]).primary_for("main")
    with pytest.raises(InvalidValue, match="does not say where the primary is"):
        async with open_redis(client):
            pass


class Planned(Exception):
    """
    What a body raises.
    """


@pytest.mark.parametrize("error", [Planned(), KeyboardInterrupt(), BaseExceptionGroup("two", [Planned(), Planned()])])
async def test_error_of_the_body_leaves_it_as_it_is(redis_url: str, error: BaseException) -> None:
    async def use_and_fail() -> None:
        async with open_redis(redis_url) as store:
            await store.merge("op", stages(stage("a")))
            raise error

    with pytest.raises(type(error)) as caught:
        await use_and_fail()
    assert caught.value is error


async def test_cancelled_block_may_still_save(redis_url: str) -> None:
    with trio.CancelScope() as scope:
        async with open_redis(redis_url) as store, open_manager(store) as manager:
            manager.record("op", stage("a"))
            scope.cancel()
            await trio.sleep_forever()
    async with open_redis(redis_url) as store:
        assert set((await known(store)).document.stages) == {("a", "")}


async def test_closed_store_says_so(redis_server: RedisServer, redis_url: str) -> None:
    async with open_redis(redis_url) as store:
        await store.merge("op", stages(stage("a")))
    with pytest.raises(StoreUnavailable, match="is closed"):
        await store.merge("op", stages(stage("b")))
    with pytest.raises(StoreUnavailable, match="is closed"):
        async with store.watch():
            pass


async def test_closing_leaves_no_connection_cancelled_or_not(redis_server: RedisServer, redis_url: str) -> None:
    before = open_sockets()
    async with open_redis(redis_url) as store, store.watch():
        await store.merge("op", stages(stage("a")))
        assert len(open_sockets() - before) == 2
    assert open_sockets() == before
    redis_server.freeze()
    with trio.move_on_after(0.3):
        async with open_redis(redis_url) as store:
            pass
    assert open_sockets() == before
    redis_server.thaw()
    with trio.CancelScope() as scope:
        async with open_redis(redis_url) as store, store.watch():
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert open_sockets() == before
    async with raw_client(redis_server) as client:
        with trio.fail_after(10):
            while len(await client.client_list()) != 1:
                pass


def open_sockets() -> set[str]:
    links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return {link for link in links if link.startswith("socket:")}


async def test_forked_child_is_refused(redis_url: str) -> None:
    async with open_redis(redis_url) as store:
        await store.merge("op", stages(stage("a")))
        read_end, write_end = os.pipe()
        child = os.fork()
        if not child:
            said = b"nothing"
            try:
                try:
                    store.merge("op", stages(stage("b"))).send(None)
                except WrongProcess:
                    said = b"wrong process"
            finally:
                os.write(write_end, said)
                os._exit(0)
        os.waitpid(child, 0)  # noqa: ASYNC222 - it has ended, or will at once
        assert os.read(read_end, 100) == b"wrong process"
        os.close(read_end)
        os.close(write_end)
        assert (await store.merge("op", stages(stage("b")))).changed


async def test_certificate_of_a_tls_server_is_checked(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    certificate = str(tmp_path / "cert.pem")
    options = ["--port", "0", "--tls-auth-clients", "no", "--tls-ca-cert-file", certificate]
    options += ["--tls-cert-file", certificate, "--tls-key-file", str(tmp_path / "key.pem")]
    with start_redis(options=options) as server:
        server.execute("CONFIG", "SET", "tls-port", str(server.port))
        address = f"rediss://localhost:{server.port}"
        with pytest.raises(StoreUnavailable, match=r"is not trusted \(self.signed certificate\).*\?ca_file=PATH"):
            async with open_store(address):
                pass
        with pytest.raises(StoreUnavailable, match=r"certificate for another name .* use the name"):
            async with open_store(f"{address.replace('localhost', '127.0.0.1')}?ca_file={certificate}"):
                pass
        for no_certificate in ("/nowhere.pem", str(tmp_path), str(tmp_path / "key.pem")):
            with pytest.raises(InvalidValue, match="cannot be read, or holds no certificates") as caught:
                async with open_store(f"{address}?ca_file={no_certificate}"):
                    pass
            assert caught.value.field == "ca_file"
        with pytest.raises(StoreUnavailable, match="if its port speaks TLS, use rediss://"):
            async with open_store(address.replace("rediss://", "redis://")):
                pass
        async with open_store(f"{address}?ca_file={certificate}") as store:
            await store.merge("op", stages(stage("a")))
            async with store.watch() as changes:
                await store.merge("op", stages(stage("b")))
                assert (await anext(changes)).opid == "op"
        server.execute("CONFIG", "SET", "tls-auth-clients", "yes")
        with pytest.raises(StoreUnavailable, match="if it asks clients for a certificate"):
            async with open_store(f"{address}?ca_file={certificate}"):
                pass


async def test_tls_to_a_port_without_it_says_so(redis_url: str) -> None:
    with pytest.raises(StoreUnavailable, match="if its port speaks no TLS, use redis://"):
        async with open_store(f"{redis_url.replace('redis://', 'rediss://')}?timeout=0.5"):
            pass


async def test_unknown_host_is_told() -> None:
    with pytest.raises(StoreUnavailable, match="its host name is not known, or could not be looked up"):
        async with open_store("redis://nowhere.invalid"):
            pass


async def test_missing_socket_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="there is no such socket file"):
        async with open_redis(coredis.Redis(unix_socket_path=str(tmp_path / "none"))):
            pass


async def test_database_out_of_range_is_told(redis_url: str) -> None:
    with pytest.raises(StoreUnavailable, match="has no database of that number"):
        async with open_store(f"{redis_url.removesuffix('/0')}/99"):
            pass


async def test_server_with_too_many_clients_says_so(redis_server: RedisServer, redis_url: str) -> None:
    async with raw_client(redis_server) as client:
        await client.ping()
        redis_server.execute("CONFIG", "SET", "maxclients", "2")  # one is for what sets it back
        try:
            async with raw_client(redis_server) as other:
                await other.ping()
                for _ in range(5):
                    with pytest.raises(StoreUnavailable, match=r"has as many clients as it allows; .* `maxclients`"):
                        async with open_store(redis_url):
                            pass
        finally:
            redis_server.execute("CONFIG", "SET", "maxclients", "1000")


async def test_server_in_protected_mode_says_so() -> None:
    async def refuse(stream: trio.SocketStream) -> None:
        await stream.send_all(b"-DENIED Redis is running in protected mode because ...\r\n")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners: list[trio.SocketListener] = await nursery.start(partial(trio.serve_tcp, refuse, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        with pytest.raises(StoreUnavailable, match="is in protected mode"):
            async with open_store(f"redis://127.0.0.1:{port}"):
                pass
        nursery.cancel_scope.cancel()


async def test_error_without_a_text_of_its_own_keeps_its_first_words(redis_cluster_url: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"could not do that \(SELECT is not allowed in cluster mode\)"):
        async with open_store(redis_cluster_url.replace("/0?cluster=true", "/3")):
            pass


def test_program_of_the_page_finds_what_it_saved_before(redis_url: str) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    program = program.replace("redis://localhost", redis_url)
    command = [sys.executable, "-W", "error", "-c", program]
    first, second = (subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(2))  # noqa: S603
    assert (first.stdout, first.stderr) == ("stored: []\n", "")
    assert re.fullmatch(r"stored: \['deploy-[0-9]+'\]\n", second.stdout)


def make_certificate(folder: Path) -> None:
    arguments = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    names = ["-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(["openssl", *arguments, *files, *names], check=True, capture_output=True)  # noqa: S603, S607 - our own
