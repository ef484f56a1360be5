"""Writes changes into a file of SQLite: rows, the position of each source table and the epoch in one transaction.

A change is there once, although Tidemark delivers at least once: what is not above the position of its source was
written before. A process that was replaced writes nothing: the file has a greater epoch than it. The source is the OID
of the table, because a `Route` gives its rows other names, and one name to several tables. NB: a database that was
created from another one as its template has the same OIDs, so both need files of their own.
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tidemark import (
    Batch,
    Change,
    Consumer,
    ConsumerFailed,
    CopyBoundary,
    Delivery,
    Epoch,
    PartitionChange,
    PartitionEvent,
    Position,
    Truncation,
)

TABLES = """
CREATE TABLE IF NOT EXISTS fence (timeline INT NOT NULL, number INT NOT NULL);
CREATE TABLE IF NOT EXISTS positions (
    source INTEGER PRIMARY KEY, timeline INT NOT NULL, commit_lsn INT NOT NULL, ordinal INT NOT NULL
);
CREATE TABLE IF NOT EXISTS changes (
    source INT NOT NULL, "table" TEXT NOT NULL, epoch_timeline INT NOT NULL, epoch INT NOT NULL, op TEXT NOT NULL,
    timeline INT NOT NULL, commit_lsn INT NOT NULL, ordinal INT NOT NULL, before TEXT, after TEXT
);
"""
Record = tuple[str, int, int, int, str | None, str | None]  # operation; timeline, commit LSN, ordinal; both sides
NOWHERE = (0, 0, 0)
LEAVES = (PartitionChange.DETACH, PartitionChange.DROP)
INSERT = "INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


class SqliteConsumer(Consumer):
    """A consumer with the options `file` and `busy_s`."""

    def __init__(self, file: Path, busy_s: float = 30.0) -> None:
        """`file`: created if it is missing. `busy_s`: how long a transaction waits for another one of the file."""
        if not file.is_absolute():
            raise ValueError("file must be an absolute path: the daemons have different working directories")
        self._file = file
        self._busy_s = busy_s
        self._epoch = (0, 0)
        self._database: sqlite3.Connection | None = None

    def on_assigned(self, epoch: Epoch, start: Position) -> None:
        """Open the file and raise its fence to the epoch."""
        del start  # the file has its own positions
        self._epoch = (epoch.timeline, epoch.number)
        self._database = sqlite3.connect(self._file, self._busy_s, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.executescript(TABLES)
        with self._transaction():
            pass

    def on_delivery(self, delivery: Delivery) -> bool:
        """Write everything in one transaction, and confirm it."""
        with self._transaction() as database:
            for item in delivery.items:
                if isinstance(item, Batch) and item.parked_number:
                    self._write_parked(database, item)
                elif isinstance(item, Batch):
                    self._write(database, item.relation.oid, (item.table,), [_record(change) for change in item])
                elif isinstance(item, Truncation):
                    self._write_emptied(database, item, item.partition)
                elif isinstance(item, PartitionEvent) and item.change in LEAVES:
                    self._write_emptied(database, item, item.partition.oid)
                elif isinstance(item, CopyBoundary) and item.begin:  # also of a copy that was interrupted
                    database.execute("DELETE FROM changes WHERE source = ?", (item.relation.oid,))
                    database.execute("DELETE FROM positions WHERE source = ?", (item.relation.oid,))
            self.before_commit(database, delivery)
        return True

    def before_commit(self, database: sqlite3.Connection, delivery: Delivery) -> None:
        """Write more into the transaction of a delivery; see `tidemark_sqlite.offsets`."""

    def stop(self) -> None:
        """Close the file."""
        if self._database is not None:
            self._database.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction; raise if a later epoch has written."""
        assert self._database is not None, "it was assigned"
        with self._database as database:
            database.execute("BEGIN IMMEDIATE")
            fence = database.execute("SELECT timeline, number FROM fence").fetchone()
            if fence is not None and fence > self._epoch:
                raise ConsumerFailed(f"{self._file} has the epoch {fence}, this process {self._epoch}")
            if fence != self._epoch:
                database.execute("DELETE FROM fence")
                database.execute("INSERT INTO fence VALUES (?, ?)", self._epoch)
            yield database

    def _write(
        self, database: sqlite3.Connection, source: int, names: Sequence[str], records: Sequence[Record]
    ) -> None:
        """Write the changes above the position of their source, under each of the names, and the new position."""
        select = "SELECT timeline, commit_lsn, ordinal FROM positions WHERE source = ?"
        position = database.execute(select, (source,)).fetchone() or NOWHERE
        new = [(source, name, *self._epoch, *record) for record in records for name in names if record[1:4] > position]
        if new:
            database.executemany(INSERT, new)
            database.execute("INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?)", (source, *records[-1][1:4]))

    def _write_emptied(self, database: sqlite3.Connection, event: Truncation | PartitionEvent, partition: int) -> None:
        """Write that a table has no rows any more; of a partition, that those with its `tableoid` are gone."""
        before = _json({"tableoid": partition}) if partition else None
        names = _names(database, event.relation.oid) or (event.relation.qualified_name,)
        self._write(database, event.relation.oid, names, [("t", *_key(event.position), before, None)])

    def _write_parked(self, database: sqlite3.Connection, batch: Batch) -> None:
        """Write a change that was parked, once: it is delivered again below the position of its source."""
        at = "SELECT 1 FROM changes WHERE source = ? AND (timeline, commit_lsn, ordinal) = (?, ?, ?)"
        for record in map(_record, batch):
            if database.execute(at, (batch.relation.oid, *record[1:4])).fetchone() is None:
                database.execute(INSERT, (batch.relation.oid, batch.table, *self._epoch, *record))


def _names(database: sqlite3.Connection, source: int) -> Sequence[str]:
    """Return the names under which the file has rows of a source."""
    return [name for (name,) in database.execute('SELECT DISTINCT "table" FROM changes WHERE source = ?', (source,))]


def _record(change: Change) -> Record:
    return (change.op.value, *_key(change.position), _json(change.before), _json(change.after))


def _key(position: Position) -> tuple[int, int, int]:
    return (position.timeline, position.commit_lsn, position.ordinal)


def _json(row: object) -> str | None:
    return None if row is None else json.dumps(row, default=str)
