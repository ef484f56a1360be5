"""A lake that was restored as a whole from a backup: refused, then adopted (`cdcctl lake adopt`)."""

import shutil
from pathlib import Path

import pytest

from tests.support.lakes.lakes import log_rows, replica_rows
from tests.support.lakes.paused_lake import READER, PausedLake
from tests.support.lakes.scripted_table import DATABASE, ScriptedTable
from tests.support.processes.cdcctl import Done, cdcctl, refused, succeeded
from tests.support.workloads.feeder import RandomTables
from tidemark.engine.selection import Selection
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.readers.state_capture import StateCapture
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ExitCode
from tidemark.pipeline.landing.restored_lake import LakeRestored, check_not_restored

GROUPS = 4


class RestoredLake(PausedLake):
    """A lake that a copy of an earlier time replaces."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._world = RandomTables(7)
        self.tables = self._world.tables
        self.feed(self._world.groups(GROUPS))
        self.land()
        self.copied = self.head
        shutil.copytree(self.lake, root / "copy")
        self.feed_and_land()

    def feed_and_land(self) -> None:
        self.feed(self._world.groups(GROUPS))
        self.land()

    def restore(self) -> None:
        shutil.rmtree(self.lake)
        shutil.copytree(self.root / "copy", self.lake)

    def adopt(self, *arguments: str) -> Done:
        return cdcctl("lake", "adopt", "--lake", self.lake, "--state", self.state, *arguments)

    def check(self) -> None:
        """Check the lake as a pipeline does before it writes."""
        with OutboxReader.open(StateFolder(self.state)) as outbox:
            check_not_restored(str(self.lake), self.open().positions, outbox, StateCapture(outbox, Selection()), READER)

    def exact(self) -> bool:
        return all(self._exact(table) for table in self.tables)

    def _exact(self, table: ScriptedTable) -> bool:
        folder = self.position(table).folder
        log = log_rows(self.lake, folder)
        positions = {(row["_commit_lsn"], row["_ordinal"]) for row in log}
        return replica_rows(self.lake, folder) == table.expected() and len(log) == len(positions) == table.changes


@pytest.fixture
def lake(tmp_path: Path) -> RestoredLake:
    return RestoredLake(tmp_path)


def test_a_restored_lake_is_written_only_after_it_was_adopted_and_then_contains_every_change_once(
    lake: RestoredLake,
) -> None:
    lake.check()
    lake.restore()
    with pytest.raises(LakeRestored, match="restored from an older copy") as raised:
        lake.check()
    assert f"cdcctl lake adopt --lake {lake.lake} --state {lake.state} --reader {READER}" in str(raised.value.hint)
    shown = succeeded(lake.adopt("--yes")).out.decode()
    assert f"continues after value {lake.copied} of {lake.head}" in shown
    lake.check()
    lake.land()
    assert lake.exact()
    lake.feed_and_land()
    assert lake.exact()


def test_confirmed_does_not_move_back_and_the_outbox_keeps_what_the_restored_lake_lacks(lake: RestoredLake) -> None:
    lake.restore()
    succeeded(lake.adopt("--yes"))
    with StateStore.open(StateFolder(lake.state)) as store:
        with store.transaction(None) as transaction:
            before = transaction.confirmed()
            ledger = transaction.apply_confirmations()
            assert transaction.confirmed() == before
        assert ledger.trimmed == lake.copied < ledger.head
        adopted = store.view().readers[READER]
    assert (adopted.applied, adopted.replayable, adopted.adoptions) == (lake.copied, lake.copied, 1)


def test_a_lake_that_is_older_than_the_outbox_is_not_adopted(lake: RestoredLake) -> None:
    lake.feed_and_land()  # the outbox is trimmed to what the lake contained before
    lake.restore()
    gone = f"the outbox no longer has the values {lake.copied + 1} to"
    with pytest.raises(LakeRestored, match=gone):
        lake.check()
    refused(lake.adopt("--yes"), ExitCode.CONFIG, gone)


def test_a_lake_is_not_adopted_beside_its_pipeline_nor_without_a_reason_or_an_answer(lake: RestoredLake) -> None:
    refused(lake.adopt("--yes"), ExitCode.CONFIG, "there is nothing to adopt")
    refused(lake.adopt("--yes", "--reader", "another"), ExitCode.CONFIG, "'another' is not registered")
    lake.restore()
    with RoleLock.acquire(StateFolder(lake.state), f"pipeline-{READER}"):
        refused(lake.adopt("--yes"), ExitCode.FENCED, "pipeline")
    assert lake.adopt().code != ExitCode.SUCCESS
    with pytest.raises(LakeRestored):
        lake.check()


def test_a_lake_of_another_outbox_or_capture_is_not_adopted(lake: RestoredLake) -> None:
    lake.restore()
    lake.use_outbox("0c0d")
    refused(lake.adopt("--yes"), ExitCode.CONFIG, "was last written from the outbox '0a0b'")


def test_a_table_that_does_not_match_the_restored_positions_is_named_before_the_question(lake: RestoredLake) -> None:
    lake.restore()
    table = next(one for one in lake.tables if (DATABASE, one.oid) in lake.open().positions.tables)
    position = lake.position(table)
    shutil.rmtree(lake.lake / position.folder / "replica")
    shown = lake.adopt("--yes")
    assert shown.code == ExitCode.SUCCESS
    assert f"{position.folder}/replica does not exist" in shown.err
