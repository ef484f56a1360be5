"""`cdcctl lake remove`: dropped tables are listed, confirmed and removed; others never."""

import json
from pathlib import Path

import pytest

from tests.support.lakes.lakes import CAPTURE, IDENTITY
from tests.support.lakes.removing import KEEPS_A_DAY, Removing
from tests.support.lakes.scripted_table import DATABASE
from tests.support.lakes.swapped_tables import SwappedTables
from tests.support.processes.cdcctl import Done, cdcctl, refused, succeeded
from tests.support.workloads.feeder import make_state
from tidemark.io.host.failpoints import VARIABLE
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ExitCode
from tidemark.pipeline.failpoints import MaintenanceFailpoint
from tidemark.pipeline.lake.lake_lock import LakeLock
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.landing import dropped_tables
from tidemark.pipeline.landing.folder_removal import remove_tables

pytestmark = pytest.mark.feature("L13")
READER = "spark"


class RemovableLake(SwappedTables):
    """A lake with dropped tables, and the state that feeds it."""

    def __init__(self, root: Path, *, is_dated: bool = True) -> None:
        super().__init__(root / "lake", is_dated=is_dated)
        self.state = root / "state"
        make_state(self.state, "0a0b")
        with OutboxReader.open(StateFolder(self.state)) as outbox:
            outbox.register(READER)
        self.swap(3)
        self.folders = [self.folder(table) for table in self.dropped]

    def remove(self, *arguments: str, **variables: str) -> Done:
        """Run the command."""
        return cdcctl("lake", "remove", "--lake", self.root, "--state", self.state, *arguments, **variables)

    def there(self) -> list[bool]:
        """Return for each dropped table whether its folder is there."""
        return [Path(self.root, folder).exists() for folder in self.folders]


@pytest.fixture
def lake(tmp_path: Path) -> RemovableLake:
    return RemovableLake(tmp_path)


def test_one_or_all_dropped_tables_are_removed(lake: RemovableLake) -> None:
    done = succeeded(lake.remove(lake.folders[1], "--yes", "--json"))
    assert json.loads(done.out) == {"lake": lake.root, "removed": [lake.folders[1]], "kept": {}}
    assert "public.stage: dropped since 1970-01-01T00:00:00" in done.err
    assert "without a known time" not in done.err
    assert lake.there() == [True, False, True]
    assert lake.states() == {"live": 1, "dropped": 2}
    succeeded(lake.remove("--all", "--yes"))
    assert lake.there() == [False, False, False]
    lake.reopen()
    lake.change()
    assert lake.states() == {"live": 1}
    refused(lake.remove("--all", "--yes"), ExitCode.CONFIG, "has no dropped table")


def test_all_incarnations_of_a_name_are_removed(lake: RemovableLake) -> None:
    succeeded(lake.remove("public.stage", "--yes"))
    assert lake.there() == [False, False, False]


def test_a_table_that_exists_is_not_removed_nor_anything_without_an_answer_or_names(lake: RemovableLake) -> None:
    refused(lake.remove("public.live", "--yes"), ExitCode.CONFIG, "has no such dropped table")
    assert lake.remove("--all").code != ExitCode.SUCCESS
    for arguments in ((), ("--all", "public.stage")):
        done = lake.remove("--yes", *arguments)
        assert (done.code, "name tables, or give --all" in done.err) == (ExitCode.CONFIG, True)
    assert lake.there() == [True, True, True]


def test_tables_without_a_known_time_of_the_drop_are_named_as_such(tmp_path: Path) -> None:
    lake = RemovableLake(tmp_path, is_dated=False)
    refused(lake.remove("--all", "--yes"), ExitCode.CONFIG, "has no dropped table")
    done = succeeded(lake.remove(*lake.folders[:2], "--yes"))
    assert "2 of them without a known time of the DROP: check that the source has no such table" in done.err
    assert lake.there() == [False, False, True]


def test_a_changed_folder_is_kept_with_the_reason(lake: RemovableLake) -> None:
    Path(lake.root, lake.folders[0], "notes.txt").write_text("ours")
    report = json.loads(succeeded(lake.remove("--all", "--yes", "--json")).out)
    assert report["removed"] == lake.folders[1:]
    assert "contains notes.txt" in report["kept"][lake.folders[0]]
    assert lake.there() == [True, False, False]


def test_a_table_that_was_dropped_after_the_list_is_kept(lake: RemovableLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipeline removes a listed table, and the next one that is dropped has its folder."""
    known = [lake.lake.positions.recorded[DATABASE, table.oid] for table in lake.dropped]
    listed = {table.folder: str(table.position) for table in known}
    monkeypatch.setattr(dropped_tables, "OFFER_S", 0.0)
    Removing(lake, KEEPS_A_DAY).run()
    lake.swap(1)
    assert lake.folder(lake.dropped[-1]) == lake.folders[0]
    result = remove_tables(lake.root, Positions(lake.root, IDENTITY), CAPTURE, listed, lambda: None)
    assert result.removed == []
    assert "it changed after it was listed" in result.kept[lake.folders[0]]
    assert lake.there() == [True, False, False]
    assert lake.states() == {"live": 1, "dropped": 1}


def test_a_lake_that_a_pipeline_writes_is_not_changed(lake: RemovableLake) -> None:
    with RoleLock.acquire(StateFolder(lake.state), f"pipeline-{READER}"):
        refused(lake.remove("--all", "--yes"), ExitCode.FENCED, "pipeline")
    with LakeLock.acquire(Path(lake.root), IDENTITY, lake.state.parent / "other", READER, []):
        refused(lake.remove("--all", "--yes"), ExitCode.CONFIG, "is written by")
    assert lake.there() == [True, True, True]


def test_a_command_that_was_killed_is_completed_by_the_pipeline(lake: RemovableLake) -> None:
    point = str(MaintenanceFailpoint.DROPPED_FILES_DELETED.value)
    assert lake.remove("--all", "--yes", **{VARIABLE: point}).code != ExitCode.SUCCESS
    lake.reopen()
    assert sorted(lake.lake.positions.leaving) == sorted(lake.folders)
    refused(lake.remove("--all", "--yes"), ExitCode.CONFIG, "has no dropped table")
    Removing(lake).run()
    assert lake.there() == [False, False, False]
    assert lake.states() == {"live": 1}
