"""Sessions in threads, as a context manager."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Self

import psycopg

from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster
from tests.support.workloads.random_sessions.draw import Load
from tests.support.workloads.random_sessions.objects import load_for, prepare
from tests.support.workloads.random_sessions.session import RandomSession

STORM_SESSIONS = 3
STORM_DEFINITIONS = 0.8
POLL_S = 0.05
STATEMENTS_TIMEOUT_S = 60
CONNECT_TIMEOUT_S = 10
JOIN_TIMEOUT_S = 120  # for the statements of a script, each within its time-out


class Crew:
    """All sessions of a load; the initial tables are created when they start."""

    def __init__(self, cluster: Cluster, database: str, load: Load, sessions: int) -> None:
        self.cluster = cluster
        self.database = database
        self.load = load
        self.sessions = [RandomSession(cluster, database, load, number) for number in range(sessions)]
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=session.run, args=(self._stop.is_set,), daemon=True) for session in self.sessions
        ]

    def __enter__(self) -> Self:
        prepare(self.cluster, self.database, self.load)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def transactions(self) -> int:
        """The number of scripts that were begun."""
        return sum(session.transactions for session in self.sessions)

    def wait_for(self, statements: int) -> None:
        """Wait until all of them together have run this number of statements, failed ones included."""
        wait_until(
            lambda: sum(len(session.log) for session in self.sessions) >= statements,
            f"{statements} statements",
            within_s=STATEMENTS_TIMEOUT_S,
            reported=lambda: str([session.log[-3:] for session in self.sessions]),
        )

    def log(self) -> Iterator[str]:
        """Yield the statements of all sessions, in the order of their ends."""
        yield from sorted(line for session in self.sessions for line in session.log)

    def stop(self) -> None:
        """Stop the sessions and end their prepared transactions, half of them by a rollback; may be called again."""
        self._stop.set()
        for thread in self._threads:
            thread.join(JOIN_TIMEOUT_S)
            assert not thread.is_alive(), "a session does not end"
        for session in self.sessions:
            if session.mistake is not None:
                raise AssertionError(f"the generator is wrong: {session.log[-1:]}") from session.mistake
        if self.cluster.running:
            query = f"SELECT gid FROM pg_prepared_xacts WHERE database = '{self.database}' ORDER BY gid"
            for number, (gid,) in enumerate(self._query(query)):
                self._query(f"{('COMMIT', 'ROLLBACK')[number % 2]} PREPARED '{gid}'")

    def _query(self, statement: str) -> list[tuple[object, ...]]:
        """Run a statement; a session that begins while a catalog is rewritten may fail to find a relation."""
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while True:
            try:
                return self.cluster.sql(statement, self.database)
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)


def storm(cluster: Cluster, database: str, seed: int, *, rewrites: float = 0.0) -> Crew:
    """Return a crew that changes mostly catalogs."""
    load = load_for(cluster, f"storm {seed}", rewrites=rewrites)
    return Crew(cluster, database, replace(load, definitions=STORM_DEFINITIONS), STORM_SESSIONS)
