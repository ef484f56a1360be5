"""A load that changes pages in all ways: for the comparison of pages with those of a recovered server."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psycopg

from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster, sql

SESSIONS = 3
JOIN_S = 60
TABLES_DDL = """
CREATE TABLE hot (id int PRIMARY KEY, note text, n int) WITH (fillfactor = 50);
CREATE TABLE big (id int PRIMARY KEY, main text, packed text, extern bytea, n int);
ALTER TABLE big ALTER main SET STORAGE MAIN, ALTER extern SET STORAGE EXTERNAL;
CREATE TABLE keyless (id int, note text, at timestamptz);
CREATE TABLE owners (id int PRIMARY KEY);
CREATE TABLE pets (id int PRIMARY KEY, owner int REFERENCES owners, name text);
CREATE TABLE parts (id int, note text, more int DEFAULT 3, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (50);
CREATE TABLE parts_high (more int, dropped int, id int NOT NULL, note text);
ALTER TABLE parts_high DROP COLUMN dropped;
ALTER TABLE parts ATTACH PARTITION parts_high FOR VALUES FROM (50) TO (100000);
CREATE TABLE quiet (id int, note text);
INSERT INTO hot SELECT g, 'first', g FROM generate_series(1, 300) g;
INSERT INTO big SELECT g, repeat('m', 500), repeat(md5(g::text), 300), decode(repeat(md5(g::text), 400), 'hex'), 0
    FROM generate_series(1, 60) g;
INSERT INTO keyless SELECT g % 50, 'first', now() FROM generate_series(1, 500) g;
INSERT INTO owners SELECT g FROM generate_series(1, 40) g;
INSERT INTO pets SELECT g, 1 + g % 40, 'pet' FROM generate_series(1, 200) g;
INSERT INTO parts SELECT g, 'first', g FROM generate_series(0, 99) g;
INSERT INTO quiet SELECT g, repeat('quiet', g) FROM generate_series(1, 100) g;
"""


def statement(chance: random.Random) -> str:
    """Return a random statement."""
    key, other, n = chance.randrange(1, 300), chance.randrange(1, 60), chance.randrange(1000)
    letters = "".join(chance.choice("abcdefgh") for _ in range(12))
    return chance.choice(
        [
            f"UPDATE hot SET n = n + 1 WHERE id BETWEEN {key} AND {key + 20}",
            f"UPDATE hot SET n = {n}, note = '{letters}' WHERE id = {key}",
            f"DELETE FROM hot WHERE id = {key}",
            f"INSERT INTO hot VALUES ({key}, 'again', {n}) ON CONFLICT (id) DO UPDATE SET n = -1",
            f"INSERT INTO hot SELECT g, 'many', {n} FROM generate_series({n}, {n + 50}) g ON CONFLICT DO NOTHING",
            f"UPDATE big SET n = {n} WHERE id = {other}",
            f"UPDATE big SET packed = repeat('{letters}', {n * 3}), extern = NULL WHERE id = {other}",
            f"UPDATE big SET extern = decode(repeat(md5('{letters}'), {n}), 'hex') WHERE id = {other}",
            f"DELETE FROM big WHERE id = {other}",
            f"INSERT INTO big VALUES ({other}, '{letters}', repeat('{letters}', 2000), NULL, 1) ON CONFLICT DO NOTHING",
            f"INSERT INTO keyless SELECT {n}, repeat('{letters}', g), now() FROM generate_series(1, {other}) g",
            f"UPDATE keyless SET note = note || 'x' WHERE id = {other}",
            f"DELETE FROM keyless WHERE id = {other}",
            f"INSERT INTO pets VALUES ({n + 200}, {1 + n % 40}, '{letters}') ON CONFLICT DO NOTHING",
            f"SELECT FROM owners WHERE id = {1 + n % 40} FOR UPDATE",
            f"SELECT FROM pets WHERE id = {key} FOR SHARE",
            f"UPDATE pets SET owner = {1 + n % 40} WHERE id = {key}",
            f"UPDATE owners SET id = id WHERE id = {1 + n % 40}",
            f"UPDATE parts SET id = {n} WHERE id = {other}",
            f"INSERT INTO parts VALUES ({n}, '{letters}') ON CONFLICT DO NOTHING",
            f"DELETE FROM parts WHERE id = {n}",
        ]
    )


def script(chance: random.Random, name: str) -> list[str]:
    """Return the statements of one transaction, or one that cannot be in a transaction."""
    kind = chance.random()
    if kind < 0.03:
        table = chance.choice(("hot", "big", "keyless", "pets", "parts"))
        return [chance.choice((f"VACUUM {table}", f"VACUUM FREEZE {table}", f"VACUUM FULL {table}", "CHECKPOINT"))]
    if kind < 0.045:
        return [
            chance.choice(
                (
                    "TRUNCATE keyless",
                    "TRUNCATE parts_low",
                    "ALTER TABLE hot ADD COLUMN IF NOT EXISTS added text DEFAULT 'constant'",
                    "ALTER TABLE keyless ALTER COLUMN id TYPE bigint",
                    "ALTER TABLE keyless ALTER COLUMN id TYPE int",
                    "ALTER TABLE parts ADD COLUMN IF NOT EXISTS later int DEFAULT 7",
                )
            )
        ]
    middle = [statement(chance) for _ in range(chance.randrange(1, 5))]
    if kind < 0.4:
        back = chance.choice(("ROLLBACK TO inner", "RELEASE inner"))
        middle = [middle[0], "SAVEPOINT inner", *middle[1:], statement(chance), back, statement(chance)]
    end = chance.choice(("COMMIT", "COMMIT", "COMMIT", "COMMIT", "ROLLBACK", f"PREPARE TRANSACTION '{name}'"))
    return ["BEGIN", *middle, end]


class PageLoad:
    """Sessions that run scripts until they are stopped."""

    def __init__(self, node: Cluster, database: str, seed: int) -> None:
        self._node, self._database, self._seed = node, database, seed
        self._stopping = threading.Event()
        self.scripts = [0] * SESSIONS
        self.failed: list[str] = []

    def run(self, number: int) -> None:
        chance = random.Random(self._seed * SESSIONS + number)
        with self._node.connect(self._database) as session:
            session.execute("SET lock_timeout = '100ms'")
            session.execute("SET deadlock_timeout = '20ms'")
            while not self._stopping.is_set():
                self._run_script(session, chance, f"p{number}-{self.scripts[number]}")
                self.scripts[number] += 1

    def _run_script(self, session: psycopg.Connection[tuple[object, ...]], chance: random.Random, name: str) -> None:
        try:
            for line in script(chance, name):
                session.execute(line.encode())
        except psycopg.Error as error:
            self.failed.append(str(error))
            with suppress(psycopg.Error):
                session.execute("ROLLBACK")
        if name.endswith("0"):
            for (gid,) in session.execute("SELECT gid FROM pg_prepared_xacts ORDER BY prepared LIMIT 1").fetchall():
                with suppress(psycopg.Error):
                    session.execute(f"{chance.choice(('COMMIT', 'ROLLBACK'))} PREPARED '{gid}'".encode())

    def wait_for_more(self, scripts: int) -> None:
        """Wait until this number of scripts has run from now on."""
        wanted = sum(self.scripts) + scripts
        wait_until(lambda: sum(self.scripts) >= wanted, f"{wanted} scripts", reported=lambda: str(self.failed[-3:]))

    def stop(self) -> None:
        self._stopping.set()


@contextmanager
def page_load(node: Cluster, database: str, seed: int) -> Iterator[PageLoad]:
    """Create the tables, and change them until the end."""
    with node.connect(database) as session:
        sql(session, TABLES_DDL)
    load = PageLoad(node, database, seed)
    threads = [threading.Thread(target=_running(load, number), daemon=True) for number in range(SESSIONS)]
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        load.stop()
        for thread in threads:
            thread.join(JOIN_S)
            assert not thread.is_alive(), "a session does not end"


def _running(load: PageLoad, number: int) -> Callable[[], None]:
    return lambda: load.run(number)
