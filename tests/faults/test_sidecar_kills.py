"""SIGKILL of the sidecar at random moments under load: the outbox holds every change exactly once.

The oracle is the source itself: what the changes add up to must be what SQL finds in the tables.
"""

import random
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.captures import Sidecar, change_log, replayed
from tests.support.postgres import Cluster, Session

KILLS = 6
TRANSACTIONS_MAX = 1500  # a session: the load has to outlast the kills, not the patience
SEED = 20261121


@pytest.fixture
def database(cluster: Cluster) -> Iterator[str]:
    name = f"kill_{uuid.uuid4().hex[:8]}"
    cluster.sql(f"CREATE DATABASE {name}")
    yield name
    cluster.sql(f"DROP DATABASE {name} WITH (FORCE)")


class Load:
    """Sessions with transactions of all kinds; one of them changes the schema."""

    def __init__(self, cluster: Cluster, database: str) -> None:
        self._cluster = cluster
        self._database = database
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(share,)) for share in range(3)]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self._errors, self._errors

    def _run(self, share: int) -> None:
        try:
            dice = random.Random(SEED + share)
            with self._cluster.connect(self._database, autocommit=False) as session:
                number = 0
                while not self._stop.is_set() and number < TRANSACTIONS_MAX:
                    number += 1
                    self._transaction(session, dice, share, number)
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            self._errors.append(error)

    def _transaction(self, session: Session, dice: random.Random, share: int, number: int) -> None:
        first = (number * 3 + share) * 100
        rows = dice.choice((1, 3, 40))
        session.execute(
            "INSERT INTO account (id, note) SELECT %s + n, repeat('x', %s) FROM generate_series(1, %s) n",
            (first, dice.choice((1, 30, 300)), rows),
        )
        if dice.random() < 0.4:
            session.execute("SAVEPOINT s")
            session.execute("UPDATE account SET note = 'never' WHERE id BETWEEN %s AND %s", (first, first + 99))
            session.execute("ROLLBACK TO s")
        if dice.random() < 0.5:
            session.execute("UPDATE account SET note = note || 'y' WHERE id = %s", (first + 1,))
        if dice.random() < 0.3:
            session.execute("UPDATE account SET id = -id WHERE id = %s", (first + 1,))
        if dice.random() < 0.3:
            session.execute("DELETE FROM account WHERE id = %s", (first + 2,))
        if share == 0 and number % 40 == 0:
            session.execute(f"ALTER TABLE account ADD COLUMN c{number} int DEFAULT {number}".encode())
        if share == 0 and number % 300 == 0:
            session.execute("ALTER TABLE account ALTER COLUMN wide TYPE bigint USING wide + 1")
            session.execute("ALTER TABLE account ALTER COLUMN wide TYPE int")
        if dice.random() < 0.1:
            session.rollback()
        elif dice.random() < 0.1:
            gid = f"{self._database}-{share}-{number}"
            session.execute(f"PREPARE TRANSACTION '{gid}'".encode())
            session.commit()
            session.autocommit = True
            session.execute(f"COMMIT PREPARED '{gid}'".encode())
            session.autocommit = False
        else:
            session.commit()


@pytest.mark.feature("I18")
@pytest.mark.feature("I23")
@pytest.mark.parametrize("copy", [False, True])
def test_the_outbox_holds_every_change_exactly_once_however_often_the_sidecar_is_killed(
    cluster: Cluster, database: str, tmp_path: Path, *, copy: bool
) -> None:
    cluster.sql("CREATE TABLE account (id int PRIMARY KEY, note text, wide int DEFAULT 1)", database)
    small = {
        "TIDEMARK_HISTORY__BASE_EVERY_BYTES": str(8 << 20),
        "TIDEMARK_HISTORY__JOURNAL_FILE_BYTES": str(1 << 16),
        "TIDEMARK_DECODE__MEMORY_BYTES": str(1 << 20),
        "TIDEMARK_DELIVER__GROUP_ROWS_MAX": "200",
    }
    dice = random.Random(SEED)
    sidecar = Sidecar(cluster, database, tmp_path, copy=copy, **small)
    if copy:
        cluster.sql("INSERT INTO account SELECT -n - 1000000, 'old' FROM generate_series(1, 3000) n", database)
    sidecar.init()
    try:
        with Load(cluster, database):
            for _ in range(KILLS):
                sidecar.start()
                time.sleep(dice.uniform(0.05, 1.5))  # the moment of the kill is the point
                sidecar.kill()
            sidecar.start()
        rows = change_log(sidecar.catch_up(), "account")
    finally:
        sidecar.close()
    with cluster.connect(database) as session:
        source = session.execute("SELECT id, note FROM account ORDER BY id").fetchall()
    streamed = [row for row in rows if row["_op"] != "r"]
    replica = replayed(newest_copy(streamed))
    assert set(replica) == {number for number, _ in source}
    assert [replica[number]["note"] for number, _ in source] == [note for _, note in source]


def newest_copy(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Leave out the rows of copies that were begun anew: those of a smaller generation."""
    newest = max((_generation(row) for row in rows if row["_op"] == "c"), default=0)
    return [row for row in rows if row["_op"] != "c" or _generation(row) == newest]


def _generation(row: dict[str, object]) -> int:
    return int(str(row["_ordinal"])) >> 40
