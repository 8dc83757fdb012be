"""
Private database servers for tests and benchmarks, started from the programs on this machine.

`start_mariadb`, `start_mysql`, `start_postgres`, `start_redis` and `start_redis_cluster` are plain context managers,
without any test framework. Each gives a server of its own: a data folder in the folder for temporary files, a free port
on 127.0.0.1, a socket. Nothing else on the machine is touched, and a server that is already there is left alone.

```python
with start_mariadb(options=["--max-allowed-packet=1M"]) as server:
    url = server.new_database()  # mysql://root@127.0.0.1:21466/timelines_1, for open_store
    server.kill()  # SIGKILL; freeze() and thaw() send SIGSTOP and SIGCONT
    server.restart()  # the same data folder and port, and it answers
```

Everything here blocks, from milliseconds up to the `timeout` of a start. A Trio program calls what it needs during a
run in a thread, such as `await trio.to_thread.run_sync(server.restart)`, and enters the context manager around
`trio.run`. A server belongs to one caller at a time: it has no locks.

What ends a server:

- The end of the `with` block, whatever state the server is in: its processes are killed and its folder is removed.
- The death of the process that started it, SIGKILL and a crash included: each server runs below a small process that
  watches its starter and then does the same. So it does when it is told to terminate. A fork of the starter keeps
  nothing alive, and a thread's end ends nothing.
- When that small process itself is killed with SIGKILL, the server's main process is killed with it, and a PostgreSQL
  server's others end when they notice; the folder is then removed at the end of the `with` block.
- What remains in no case is a process. A folder remains if the starter is killed while the server is down, after
  `stop` or `kill`.

A program that is not on the machine is a `ServerMissing`, which names the Debian packages to install; so does
`missing_servers`, without starting anything. A server that does not come up is a `ServerFailed`, with the end of its
log.

Linux only, since it reads /proc and holds processes by pidfd.

A server writes as durably as its own defaults say (MariaDB and MySQL: innodb_flush_log_at_trx_commit=1, PostgreSQL:
fsync=on), except Redis, which keeps nothing on disk unless asked: `options=["--appendonly", "yes"]`. With a `parent`
that is kept in memory, such as /dev/shm, all of them are faster, and still keep what they wrote when they are killed.
"""

from ..._public import publish
from ._errors import ServerFailed as ServerFailed
from ._errors import ServerMissing as ServerMissing
from ._missing import missing_servers as missing_servers
from ._mysql import MySQLServer as MySQLServer
from ._mysql import start_mariadb as start_mariadb
from ._mysql import start_mysql as start_mysql
from ._postgres import PostgresServer as PostgresServer
from ._postgres import start_postgres as start_postgres
from ._redis import RedisCluster as RedisCluster
from ._redis import RedisServer as RedisServer
from ._redis import start_redis as start_redis
from ._redis import start_redis_cluster as start_redis_cluster
from ._server import Server as Server
from ._sql import SQLServer as SQLServer

__all__ = [
    "MySQLServer",
    "PostgresServer",
    "RedisCluster",
    "RedisServer",
    "SQLServer",
    "Server",
    "ServerFailed",
    "ServerMissing",
    "missing_servers",
    "start_mariadb",
    "start_mysql",
    "start_postgres",
    "start_redis",
    "start_redis_cluster",
]

publish(globals(), __name__)
