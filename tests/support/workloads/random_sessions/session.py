"""One session: runs script after script, rolls back those that fail, and reconnects after a server stop."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psycopg
from psycopg.pq import TransactionStatus

from tests.support.servers.postgres import Cluster, Session, sql
from tests.support.workloads.random_sessions.draw import Load, Step
from tests.support.workloads.random_sessions.scripts import Script, script_of

AWAY_S = 0.05
SETTINGS = (
    "SET lock_timeout = '150ms'",
    "SET statement_timeout = '5s'",
    "SET deadlock_timeout = '100ms'",
    "SET client_min_messages = 'error'",
)
DONE = "done"


def is_mistake(error: psycopg.Error) -> bool:
    """Return whether a statement is invalid; an invalid value has the same code, and may belong to a changed column."""
    reported, context = error.diag.message_primary or "", error.diag.context or ""
    is_of_value = reported.endswith("of jsonpath input") or context.startswith("invalid type name")
    return isinstance(error, psycopg.errors.SyntaxError) and reported.startswith("syntax error at ") and not is_of_value


@dataclass
class RandomSession:
    """Session `number` of a load; `log` has each statement with its time and outcome."""

    cluster: Cluster
    database: str
    load: Load
    number: int
    log: list[str] = field(default_factory=list)
    transactions: int = 0
    failures: int = 0
    mistake: Exception | None = None  # an invalid statement of this load

    def run(self, stopped: Callable[[], bool]) -> None:
        """Run scripts until the load is stopped."""
        session: Session | None = None
        try:
            while not stopped():
                session = session or self._connected()
                if session is None:
                    time.sleep(AWAY_S)
                elif not self._transaction(session, script_of(self.load, self.number, self.transactions)):
                    session.close()
                    session = None
        except psycopg.errors.SyntaxError as error:
            self.mistake = error
        finally:
            if session is not None:
                session.close()

    def _connected(self) -> Session | None:
        try:
            session = self.cluster.connect(self.database)
            for setting in SETTINGS:
                sql(session, setting)
        except psycopg.Error:
            return None
        return session

    def _transaction(self, session: Session, script: Script) -> bool:
        """Run a script; false if the session is lost."""
        self.transactions += 1
        going = self._steps(session, script.steps, guarded=script.guarded)
        return going and self._steps(session, script.finish, guarded=False)

    def _steps(self, session: Session, steps: Sequence[Step], *, guarded: bool) -> bool:
        """Run steps until one fails without a savepoint; false if the session is lost."""
        for step in steps:
            guard = guarded and _in_transaction(session) and not step.sql.startswith(_ENDS)
            done = self._guarded(session, step) if guard else self._run(session, step)
            if session.closed:
                return False
            if not done and session.info.transaction_status != TransactionStatus.IDLE and not guard:
                return self._run(session, Step("ROLLBACK"))
        return not _in_transaction(session) or self._run(session, Step("ROLLBACK"))

    def _guarded(self, session: Session, step: Step) -> bool:
        if not self._run(session, Step("SAVEPOINT guard")):
            return False
        if self._run(session, step):
            return self._run(session, Step("RELEASE guard"))
        return not session.closed and self._run(session, Step("ROLLBACK TO guard"))

    def _run(self, session: Session, step: Step) -> bool:
        """Run one step; return whether it succeeded."""
        became = DONE
        try:
            if step.rows:
                with session.cursor().copy(step.sql.encode()) as copy:
                    copy.write("".join(f"{row}\n" for row in step.rows))
            else:
                sql(session, step.sql)
        except psycopg.Error as error:
            if is_mistake(error):
                raise
            became = error.sqlstate or "lost"
            self.failures += 1
        self.log.append(f"{time.time():.6f} session {self.number} script {self.transactions - 1} {became}: {step.sql}")
        return became == DONE


_ENDS = ("COMMIT", "ROLLBACK", "PREPARE", "SAVEPOINT", "RELEASE")


def _in_transaction(session: Session) -> bool:
    return session.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)
