"""Temporary PostgreSQL clusters for tests: created, started, stopped cleanly or not, and always removed at the end.

PostgreSQL refuses to run as root: for root, servers run as another user (`OS_USERS`), and the data is in a separate
folder below the system's temporary folder, because other users cannot read pytest's.
"""

import ctypes
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import IO

import psutil
import psycopg
from psycopg.rows import TupleRow

from tests.support.processes.waiting import wait_until
from tests.support.servers.initialised import copy_initialised
from tests.support.servers.servers import ServerPrograms, server

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 120
CONNECT_TIMEOUT_S = 60
SQL_TIMEOUT_MS = 120_000
OS_USERS = ("postgres", "nobody")
SUPERUSER = "postgres"
FIRST_PORT, PORT_RANGES, PORTS_A_WORKER = 20_000, 8, 1_500
PR_SET_PDEATHSIG = 1  # prctl(2)

Session = psycopg.Connection[TupleRow]

SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    "max_prepared_transactions": "10",
    "max_wal_senders": "10",
    "max_replication_slots": "10",
    "max_connections": "50",
    "shared_buffers": "64MB",
    "wal_keep_size": "256MB",  # a stream without a slot must survive the checkpoints of a test
    "fsync": "off",
    "full_page_writes": "on",
    "listen_addresses": "127.0.0.1",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
    "jit": "off",
}
HBA = "local all all trust\nhost all all 127.0.0.1/32 trust\n"
HBA_REPLICATION = "local replication all trust\nhost replication all 127.0.0.1/32 trust\n"


class StopMode(Enum):
    """How to stop a server: the signal that `pg_ctl stop -m` sends."""

    FAST = signal.SIGINT
    IMMEDIATE = signal.SIGQUIT
    KILL = signal.SIGKILL


class Cluster:
    """One database cluster and its server process."""

    def __init__(self, folder: Path, programs: ServerPrograms) -> None:
        self.folder = folder
        self.server = programs
        self.data = folder / "data"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def major(self) -> int:
        return self.server.major

    @property
    def pid(self) -> int:
        """The postmaster's process id; the server must be running."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What the server wrote to its log."""
        return (self.folder / "log").read_text(errors="replace")

    def init(self, settings: Mapping[str, str | int], initdb: Sequence[str] = ()) -> None:
        """Create the data directory with `SETTINGS`, changed by `settings`."""
        copy_initialised(self.server, initdb, self.data, self._initdb)
        own = {"port": str(self.port), "unix_socket_directories": f"'{self.folder}'"}
        self.configure(**{**SETTINGS, **own, **settings}, reload=False)
        self.hba(HBA_REPLICATION + HBA, reload=False)

    def _initdb(self, data: Path, options: Sequence[str]) -> None:
        fixed = ["-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        self.run(self.server.program("initdb"), "-D", str(data), *fixed, *options)

    def configure(self, *, reload: bool = True, **settings: str | int) -> None:
        """Append settings to postgresql.conf; a later line wins."""
        with (self.data / "postgresql.conf").open("a") as conf:
            for name, value in settings.items():
                text = str(value)
                conf.write(f"{name} = {text if text.startswith(chr(39)) else repr(text)}\n")
        if reload:
            self.reload()

    def hba(self, lines: str, *, reload: bool = True) -> None:
        """Replace pg_hba.conf."""
        (self.data / "pg_hba.conf").write_text(lines)
        if reload:
            self.reload()

    def reload(self) -> None:
        """Reload the configuration and wait until new sessions see it."""
        before = self.log.count("reloading configuration files")
        os.kill(self.pid, signal.SIGHUP)
        self._wait(lambda: self.log.count("reloading configuration files") > before, "reload")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        assert not self.running
        self._log = (self.folder / "log").open("ab")
        command = [str(self.server.program("postgres")), "-D", str(self.data)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            cwd=self.folder,
            start_new_session=True,  # an interrupt of the test run must not reach the server
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - one system call
            env=_environment(),
            user=_uid(),
            group=_gid(),
            extra_groups=None if _uid() is None else [],
        )
        self.until_it_answers()

    def until_it_answers(self) -> None:
        """Wait for a server that starts, or that restarts after a crash of one of its processes."""
        self._wait(self._answers, "start")

    @property
    def starts(self) -> int:
        """The number of starts in the server's log: by the tests, or after a crash of one of its processes."""
        return self.log.count("database system is ready to accept connections")

    def until_it_started_again(self, starts: int) -> None:
        """Wait for a restart after a crash of a process: the server still answers for a moment before it."""
        self._wait(lambda: self.starts > starts, "start after a crash")
        self.until_it_answers()

    def _answers(self) -> bool:
        if not self.running:
            raise AssertionError(f"the server did not start:\n{self.log[-3000:]}")
        try:
            psycopg.connect(self.dsn(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, what, within_s=START_TIMEOUT_S, reported=lambda: self.log[-3000:])

    def stop(self, mode: StopMode = StopMode.FAST) -> None:
        """Stop the server, if it runs, and wait until all its processes have ended, also backends that outlive it."""
        children: list[psutil.Process] = []
        if self._process is not None:
            if self.running:
                children = psutil.Process(self._process.pid).children()
                self._process.send_signal(mode.value)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.send_signal(StopMode.IMMEDIATE.value)
                self._process.wait(STOP_TIMEOUT_S)
                raise
            finally:
                self._process = None
        _wait_gone(children)
        if self._log is not None:
            self._log.close()
            self._log = None

    def wait_stopped(self, timeout_s: float) -> bool:
        """Wait for a server that another process stops; return whether it has ended."""
        assert self._process is not None
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def restart(self, mode: StopMode = StopMode.FAST) -> None:
        """Stop and start again: with IMMEDIATE, through crash recovery."""
        self.stop(mode)
        self.start()

    def dsn(self, database: str = "postgres", user: str = SUPERUSER, **options: str | int) -> str:
        """Return a connection string over the unix socket."""
        rest = "".join(f" {name}={value}" for name, value in options.items())
        return f"host={self.folder} port={self.port} dbname={database} user={user}{rest}"

    def url(self, database: str = "postgres", user: str = SUPERUSER) -> str:
        """Return a connection URL over TCP."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres", user: str = SUPERUSER, *, autocommit: bool = True) -> Session:
        """Open a session with time-outs, whose text is UTF-8 in any database."""
        # NB: a new session locks catalogs before the server's time-outs apply.
        options = f"'-c statement_timeout={SQL_TIMEOUT_MS} -c client_encoding=UTF8'"
        dsn = self.dsn(database, user, options=options, connect_timeout=CONNECT_TIMEOUT_S)
        return psycopg.connect(dsn, autocommit=autocommit)

    def sql(self, statement: str, database: str = "postgres", user: str = SUPERUSER) -> list[TupleRow]:
        """Run a statement in a new session and return its rows, if it has any."""
        with self.connect(database, user) as session:
            return sql(session, statement)

    def flush_lsn(self) -> str:
        """Return the server's flush LSN as text."""
        return str(self.sql("SELECT pg_current_wal_flush_lsn()")[0][0])

    def run(self, program: Path, *arguments: str, timeout_s: int = 120) -> str:
        """Run a PostgreSQL program as the server's user; return its output."""
        done = subprocess.run(
            [str(program), *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            cwd=self.folder,
            env=_environment(),
            user=_uid(),
            group=_gid(),
            extra_groups=None if _uid() is None else [],
        )
        if done.returncode:
            raise AssertionError(f"{program.name} failed ({done.returncode}):\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def client(self, name: str, *arguments: str, timeout_s: int = 120) -> str:
        """Run a client program (psql, pgbench) against this cluster; return its output."""
        where = ["-h", str(self.folder), "-p", str(self.port), "-U", SUPERUSER]
        return self.run(self.server.client(name), *where, *arguments, timeout_s=timeout_s)

    def destroy(self) -> None:
        """Stop the server and remove everything."""
        try:
            self.stop(StopMode.IMMEDIATE)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def sql(session: Session, statement: str) -> list[TupleRow]:
    """Run a statement in `session` and return its rows, if it has any."""
    cursor = session.execute(statement.encode())
    return cursor.fetchall() if cursor.description else []


@contextmanager
def new_cluster(
    major: int = 15, settings: Mapping[str, str | int] | None = None, *, initdb: Sequence[str] = (), start: bool = True
) -> Iterator[Cluster]:
    """Create a cluster of `major`, started unless requested otherwise; it is removed at the end."""
    with cluster_of(server(major), settings, initdb=initdb, start=start) as cluster:
        yield cluster


@contextmanager
def database_in(cluster: Cluster, name: str, *setup: str, options: str = "") -> Iterator[str]:
    """Create a database, run scripts in it, and yield its name; it is dropped at the end, with any open sessions."""
    cluster.sql(f"CREATE DATABASE {name} {options}")
    try:
        for script in setup:
            cluster.sql(script, name)
        yield name
    finally:
        cluster.sql(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def cluster_without_data(major: int) -> Iterator[Cluster]:
    """Prepare a cluster of `major` whose data directory comes from elsewhere; it is removed at the end."""
    with _place_for(server(major)) as cluster:
        yield cluster


@contextmanager
def cluster_of(
    programs: ServerPrograms,
    settings: Mapping[str, str | int] | None = None,
    *,
    initdb: Sequence[str] = (),
    start: bool = True,
) -> Iterator[Cluster]:
    """Return a cluster of the server with these programs."""
    with _place_for(programs) as cluster:
        cluster.init(settings or {}, initdb)
        if start:
            cluster.start()
        yield cluster


@contextmanager
def _place_for(programs: ServerPrograms) -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="tm-"))
    if account := _account():
        os.chown(folder, account.pw_uid, account.pw_gid)
    cluster = Cluster(folder, programs)
    try:
        yield cluster
    finally:
        cluster.destroy()


def free_port() -> int:
    """Return a port that was free a moment ago, outside the range of outgoing connections' ports.

    Parallel test processes use separate ranges: between two starts a server's port is free, too.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PORT_RANGES
    first = FIRST_PORT + worker * PORTS_A_WORKER
    while True:
        port = random.randrange(first, first + PORTS_A_WORKER)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _wait_gone(processes: Sequence[psutil.Process]) -> None:
    """Wait for processes that are not our children: a zombie has ended."""
    wait_until(
        lambda: not any(map(_is_alive, processes)),
        "the end of the backends of a stopped server",
        within_s=STOP_TIMEOUT_S,
        reported=lambda: str(processes),
    )


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _account() -> pwd.struct_passwd | None:
    """Return the user that runs servers: None is the present one."""
    if os.geteuid() != 0:
        return None
    known = {account.pw_name: account for account in pwd.getpwall()}
    for name in OS_USERS:
        if name in known:
            return known[name]
    raise AssertionError(f"PostgreSQL does not run as root, and none of {OS_USERS} exists")


def _uid() -> int | None:
    account = _account()
    return account.pw_uid if account else None


def _gid() -> int | None:
    account = _account()
    return account.pw_gid if account else None


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
    return {**kept, "LC_ALL": "C"}


def _die_with_parent() -> None:
    """End the servers of a killed test run."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)
