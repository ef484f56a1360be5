"""A live load of every kind of transaction, on tables of different shapes, with DDL between them.

    account    plain, with the most changes of columns         letter   TOASTed bodies that most updates do not change
    reading    REPLICA IDENTITY FULL, some values TOASTed       basket   sometimes truncated
    visit      without a key, only inserts                      page_<n> created, filled and dropped by DDL

Sessions wait for each other's locks, and sometimes deadlock: PostgreSQL ends one, which is one more abort. If the
server may stop they reconnect, and end their prepared transactions; the server's answer shows whether the last commit
succeeded.
"""

import itertools
import random
import threading
import time
from collections.abc import Iterator

from psycopg import OperationalError
from psycopg.errors import DeadlockDetected

from tests.support.servers.postgres import Cluster, Session

SESSIONS = 3
KEYS_EACH = 100  # keys that belong to one transaction
OUTAGE_S = 0.1  # between two attempts to connect
TRIES_AT_END = 100  # to end transactions that were prepared before an outage
OLD_ROWS = 1000  # of each table, from before the capture
OLD_KEYS = -1_000_000_000  # keys of old rows are below: a load of hours does not reach it with its negated keys
TABLES = (
    "CREATE TABLE account (id int PRIMARY KEY, note text, wide int DEFAULT 1)",
    "CREATE TABLE letter (id int PRIMARY KEY, counter int DEFAULT 0, body text)",
    "ALTER TABLE letter ALTER COLUMN body SET STORAGE EXTERNAL",
    "CREATE TABLE reading (id int PRIMARY KEY, level numeric(10,2), body text)",
    "ALTER TABLE reading REPLICA IDENTITY FULL",
    "CREATE TABLE basket (id int PRIMARY KEY, goods text[])",
    "CREATE TABLE visit (id int, note text)",
)
OLD = (
    f"INSERT INTO account SELECT {OLD_KEYS} - n, 'old' FROM generate_series(1, %s) n",
    f"INSERT INTO letter SELECT {OLD_KEYS} - n, 0, repeat(md5(n::text), 80) FROM generate_series(1, %s) n",
    f"INSERT INTO reading SELECT {OLD_KEYS} - n, n / 7.0, 'old' FROM generate_series(1, %s) n",
    f"INSERT INTO visit SELECT {OLD_KEYS} - n, 'old' FROM generate_series(1, %s) n",
)


class MixedLoad:
    """Sessions that run inside `with`; the first of them changes the schema."""

    def __init__(
        self,
        cluster: Cluster,
        database: str,
        seed: int,
        *,
        pause_s: float = 0.0,
        transactions_max: int | None = None,
        ddl_every: int = 40,
        through_outages: bool = False,
    ) -> None:
        """`pause_s` is the pause between a session's transactions, `transactions_max` their maximal number."""
        self.committed = 0
        self._cluster = cluster
        self._database = database
        self._seed = seed
        self._pause_s = pause_s
        self._transactions_max = transactions_max
        self._ddl_every = ddl_every
        self._through_outages = through_outages
        self._stop = threading.Event()
        self._may_continue = threading.Event()
        self._may_continue.set()
        self._counting = threading.Lock()
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(share,)) for share in range(SESSIONS)]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self.resume()
        for thread in self._threads:
            thread.join()
        self.check()

    def pause(self) -> None:
        """Let no session begin another transaction until `resume`."""
        self._may_continue.clear()

    def resume(self) -> None:
        """Let all sessions continue."""
        self._may_continue.set()

    def check(self) -> None:
        """Raise if a session failed."""
        assert not self._errors, self._errors

    def _run(self, share: int) -> None:
        try:
            dice = random.Random(self._seed * SESSIONS + share)
            numbers = itertools.count(1)
            tries_left = TRIES_AT_END
            while True:
                try:
                    return self._run_session(dice, share, numbers)
                except OperationalError:
                    tries_left -= self._stop.is_set()
                    if not self._through_outages or not tries_left:
                        raise
                    time.sleep(OUTAGE_S)
        except BaseException as error:  # noqa: BLE001 - raised by the main thread
            self._errors.append(error)

    def _run_session(self, dice: random.Random, share: int, numbers: Iterator[int]) -> None:
        with self._cluster.connect(self._database, autocommit=False) as session:
            session.execute("SET deadlock_timeout = '50ms'")
            session.commit()
            self._end_prepared(session, share)
            for number in numbers:
                self._may_continue.wait()
                if self._stop.is_set() or number - 1 == self._transactions_max:
                    break
                try:
                    self._transaction(session, dice, share, number)
                except DeadlockDetected:
                    session.rollback()
                time.sleep(self._pause_s)
            self._end_prepared(session, share)

    def _transaction(self, session: Session, dice: random.Random, share: int, number: int) -> None:
        first = (number * SESSIONS + share) * KEYS_EACH
        earlier = first - KEYS_EACH * SESSIONS * dice.choice((1, 2, 9))
        for change in (change_accounts, change_letters, change_readings, change_baskets, change_visits):
            if change is change_accounts or dice.random() < 0.4:
                change(session, dice, first, earlier)
        if share == 0 and number % self._ddl_every == 0:
            for statement in schema_change(number // self._ddl_every):
                session.execute(statement.encode())
        if dice.random() < 0.1:
            session.rollback()
            return
        if dice.random() < 0.1:
            self._prepare(session, f"{self._database}-{share}-{number}")
        else:
            session.commit()
        with self._counting:
            self.committed += 1

    def _end_prepared(self, session: Session, share: int) -> None:
        session.autocommit = True
        prepared = session.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE gid LIKE %s", (f"{self._database}-{share}-%",)
        )
        for (gid,) in prepared.fetchall():
            session.execute(f"COMMIT PREPARED '{gid}'".encode())
        session.autocommit = False

    def _prepare(self, session: Session, gid: str) -> None:
        session.execute(f"PREPARE TRANSACTION '{gid}'".encode())
        session.commit()
        time.sleep(self._pause_s)
        session.autocommit = True
        session.execute(f"COMMIT PREPARED '{gid}'".encode())
        session.autocommit = False


def create_tables(cluster: Cluster, database: str, *, old_rows: int = 0) -> None:
    """Create the tables, with rows that only a first copy delivers."""
    with cluster.connect(database) as session:
        for statement in TABLES:
            session.execute(statement.encode())
        for statement in OLD:
            session.execute(statement.encode(), (old_rows,))


def change_accounts(session: Session, dice: random.Random, first: int, _earlier: int) -> None:
    """Insert, change and delete, inside savepoints that are rolled back or released."""
    session.execute(
        "INSERT INTO account (id, note) SELECT %s + n, repeat('x', %s) FROM generate_series(1, %s) n",
        (first, dice.choice((1, 30, 300)), dice.choice((1, 3, 40))),
    )
    if dice.random() < 0.4:
        session.execute("SAVEPOINT s")
        session.execute("UPDATE account SET note = 'never' WHERE id BETWEEN %s AND %s", (first, first + 99))
        session.execute("ROLLBACK TO s")
    if dice.random() < 0.5:
        session.execute("SAVEPOINT kept")
        session.execute("UPDATE account SET note = note || 'y' WHERE id = %s", (first + 1,))
        session.execute("RELEASE kept")
    if dice.random() < 0.3:
        session.execute("UPDATE account SET id = -id WHERE id = %s", (first + 1,))
    if dice.random() < 0.3:
        session.execute("DELETE FROM account WHERE id = %s", (first + 2,))


def change_letters(session: Session, dice: random.Random, first: int, earlier: int) -> None:
    """Insert a TOASTed value; of an earlier row change another column, the key, or the value."""
    session.execute(
        "INSERT INTO letter (id, body) SELECT %s, repeat(md5(%s::text), %s)", (first, first, dice.choice((1, 90, 200)))
    )
    change = dice.choice(
        (
            "UPDATE letter SET counter = counter + 1 WHERE id = %s",
            f"UPDATE letter SET counter = counter + 1 WHERE id IN (%s, {OLD_KEYS - 1}, {OLD_KEYS - 2})",
            "UPDATE letter SET id = -id WHERE id = %s",
            "UPDATE letter SET body = body || 'z' WHERE id = %s",
            "DELETE FROM letter WHERE id = %s",
        )
    )
    session.execute(change.encode(), (earlier,))


def change_readings(session: Session, dice: random.Random, first: int, earlier: int) -> None:
    """Change rows whose old and new versions are complete in WAL."""
    session.execute(
        "INSERT INTO reading (id, level, body) SELECT %s + n, n / 3.0, repeat(md5(n::text), %s)"
        " FROM generate_series(1, %s) n",
        (first, dice.choice((1, 150)), dice.choice((1, 5))),
    )
    change = dice.choice(
        (
            "UPDATE reading SET level = level + 1 WHERE id = %s",
            "UPDATE reading SET id = -id, level = NULL WHERE id = %s",
            "DELETE FROM reading WHERE id = %s",
        )
    )
    session.execute(change.encode(), (earlier + 1,))


def change_baskets(session: Session, dice: random.Random, first: int, _earlier: int) -> None:
    """Insert, and sometimes truncate the table first."""
    if dice.random() < 0.1:
        session.execute("TRUNCATE basket")
    session.execute("INSERT INTO basket VALUES (%s, ARRAY['pear', NULL])", (first,))


def change_visits(session: Session, dice: random.Random, first: int, _earlier: int) -> None:
    """Insert rows without a key, equal ones among them."""
    session.execute("INSERT INTO visit SELECT %s, 'v' FROM generate_series(1, %s)", (first, dice.choice((1, 4))))


def schema_change(number: int) -> tuple[str, ...]:
    """Return the statements of the nth change: kinds rotate, and no change depends on one that may have aborted."""
    kinds = (
        (f"ALTER TABLE account ADD COLUMN c{number} int DEFAULT {number}",),
        (
            f"CREATE TABLE page_{number} (id int PRIMARY KEY, note text)",
            f"INSERT INTO page_{number} SELECT n, 'born' FROM generate_series(1, 20) n",
        ),
        (
            "ALTER TABLE account ALTER COLUMN wide TYPE bigint USING wide + 1",
            "ALTER TABLE account ALTER COLUMN wide TYPE int",
        ),
        (f"ALTER TABLE account DROP COLUMN IF EXISTS c{number - 3}",),
        (f"ALTER TABLE letter ADD COLUMN c{number} float8 DEFAULT random()",),
        (f"DROP TABLE IF EXISTS page_{number - 4}",),
        (f"ALTER TABLE reading ADD COLUMN c{number} text DEFAULT 'constant'",),
        (f"ALTER TABLE letter DROP COLUMN IF EXISTS c{number - 3}",),
    )
    return kinds[(number - 1) % len(kinds)]
