"""Rows and the positions of a hook in one transaction: what is merged from a second stream is recorded exactly once.

The positions in the file count. Those in the state of the capture follow in its next commit round, and may be behind
after a crash.
"""

import sqlite3
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path

from tidemark import Delivery, Epoch, Partition, Position
from tidemark_sqlite import SqliteConsumer

OFFSETS = """
CREATE TABLE IF NOT EXISTS offsets (
    system_identifier INT NOT NULL, "database" INT NOT NULL,
    timeline INT NOT NULL, commit_lsn INT NOT NULL, ordinal INT NOT NULL,
    PRIMARY KEY (system_identifier, "database")
)
"""
ByPartition = Mapping[Partition, Position]


class SqliteOffsetsConsumer(SqliteConsumer):
    """A base class: it calls `offsets` in each transaction, between the rows and the commit."""

    def __init__(self, file: Path, busy_s: float = 30.0) -> None:
        super().__init__(file, busy_s)
        self._own: Partition | None = None  # the capture
        self._written: ByPartition = {}
        self._committed: ByPartition = {}

    @abstractmethod
    def offsets(self, positions: ByPartition) -> ByPartition:
        """Return the positions to be committed with the rows of a delivery.

        `positions` has those in the file, and that of the delivery. After a crash a delivery can come again: then the
        file has its rows, and what was returned with them.
        """

    def on_assigned(self, epoch: Epoch, start: Position) -> None:
        """Open the file, and read its positions."""
        super().on_assigned(epoch, start)
        with self._transaction() as database:
            database.execute(OFFSETS)
            self._committed = _stored(database)

    def on_delivery(self, delivery: Delivery) -> bool:
        """Write everything in one transaction, and confirm it."""
        confirms = super().on_delivery(delivery)
        self._committed = self._written
        return confirms

    def before_commit(self, database: sqlite3.Connection, delivery: Delivery) -> None:
        """Write the positions of the hook."""
        self._own, known = delivery.partition, _stored(database)
        returned = self.offsets({**known, delivery.partition: delivery.position})
        database.executemany(
            "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?, ?, ?)",
            [
                (key.system_identifier, key.database, at.timeline, at.commit_lsn, at.ordinal)
                for key, at in returned.items()
            ],
        )
        self._written = {**known, **returned}

    def update_offsets(self, positions: ByPartition) -> ByPartition:
        """Let the state follow with the positions of other partitions than the capture."""
        return {**positions, **{key: at for key, at in self._committed.items() if key != self._own}}


def _stored(database: sqlite3.Connection) -> dict[Partition, Position]:
    found = database.execute("SELECT * FROM offsets").fetchall()
    return {Partition(system, oid): Position(*position) for system, oid, *position in found}
