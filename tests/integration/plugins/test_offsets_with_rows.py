"""A target that commits rows and the positions of a hook in one transaction, through kills before and after it."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.plugins.daemons import file_rows, use_config
from tests.support.plugins.recording import MERGED, Place
from tests.support.processes.captures import Sidecar, initialised
from tests.support.servers.postgres import Cluster
from tidemark.io.state.state import StateStore
from tidemark.wire.state.state_keys import ADDED_POSITIONS

CONFIG = """
[deliver]
consumer = 'tests.support.plugins.recording:MergingConsumer'
[consumer]
file = '{file}'
kill = '{kill}'
"""


class MergedTarget:
    """The file of a sidecar's consumer, and the file that requests a kill."""

    def __init__(self, sidecar: Sidecar, root: Path) -> None:
        self.sidecar = sidecar
        self._file, self._kill = root / "changes.db", root / "kill"
        use_config(CONFIG.format(file=self._file, kill=self._kill), sidecar)

    def insert(self, *numbers: int) -> None:
        """Insert rows in one transaction."""
        rows = ", ".join(f"({number})" for number in numbers)
        self.sidecar.cluster.sql(f"INSERT INTO account VALUES {rows}", self.sidecar.database)

    def killed_in(self, call: str, rows: int, *numbers: int) -> None:
        """Insert rows, and wait for the kill of the sidecar in the first call of its consumer with so many rows."""
        self._kill.write_text(f"{call} {rows}")
        self.insert(*numbers)
        process = self.sidecar.process
        assert process is not None
        self.sidecar.wait_until(lambda: process.poll() is not None, f"the kill in {call}")
        assert not self._kill.exists()

    def rows(self) -> int:
        return len(file_rows(self._file))

    def merged(self) -> int:
        """Return how many rows the second stream was merged with, by its position in the file."""
        with closing(sqlite3.connect(self._file)) as database:
            places: list[Place] = database.execute(
                "SELECT timeline, commit_lsn, ordinal FROM offsets WHERE system_identifier = ?",
                (MERGED.system_identifier,),
            ).fetchall()
        return places[0][1] if places else 0

    def merged_in_state(self) -> int:
        with StateStore.open(self.sidecar.folder) as store, store.reading() as transaction:
            added = transaction.get(ADDED_POSITIONS)
        return 0 if added is None or MERGED not in added.by_partition else added.by_partition[MERGED].commit_lsn

    def wait_for_rows(self, count: int) -> None:
        self.sidecar.wait_until(lambda: self.rows() == count, "the rows")
        assert self.merged() == count


@pytest.fixture
def target(cluster: Cluster, database: str, tmp_path: Path) -> Iterator[MergedTarget]:
    cluster.sql("CREATE TABLE account (id int PRIMARY KEY)", database)
    with initialised(cluster, database, tmp_path) as sidecar:
        yield MergedTarget(sidecar, tmp_path)


@pytest.mark.feature("U12")
def test_after_a_kill_between_write_and_commit_the_target_has_neither_rows_nor_the_positions_of_the_hook(
    target: MergedTarget,
) -> None:
    sidecar = target.sidecar
    sidecar.start()
    target.insert(1)
    target.wait_for_rows(1)
    target.killed_in("offsets", 3, 2, 3)
    assert (target.rows(), target.merged()) == (1, 1)
    sidecar.start()
    target.wait_for_rows(3)
    sidecar.wait_until(lambda: target.merged_in_state() == 3, "the position in the state")
    target.killed_in("update_offsets", 4, 4)
    assert (target.rows(), target.merged()) == (4, 4)
    assert target.merged_in_state() < 4, "it follows"
    sidecar.start()
    target.insert(5)
    target.wait_for_rows(5)
    sidecar.wait_until(lambda: target.merged_in_state() == 5, "the position in the state")
