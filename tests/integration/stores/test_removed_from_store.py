"""A dropped table is removed from an object store, also after a kill and an outage; other objects stay."""

from dataclasses import replace
from enum import Enum

import pytest

from tests.support.lakes.lakes import CAPTURE, IDENTITY, Crash
from tests.support.lakes.removing import KEEPS_A_DAY, Removing
from tests.support.lakes.stored_lake import StoredLake
from tests.support.lakes.swapped_tables import SwappedTables
from tests.support.servers.object_store import Answer, Forward, StoreRequest, forwarded, refusal
from tidemark.io.host.failpoints import arm
from tidemark.pipeline.failpoints import MaintenanceFailpoint
from tidemark.pipeline.lake.lake_lock import LakeInUse
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.landing import dropped_tables
from tidemark.pipeline.landing.folder_removal import remove_tables
from tidemark.pipeline.landing.lake_epoch import LakeTaken, hold_lake
from tidemark.pipeline.landing.metrics import MAINTENANCE_FAILURES
from tidemark.pipeline.storage.object_store import ObjectStore
from tidemark.pipeline.storage.stores import store_of
from tidemark.wire.capture_facts import CaptureFacts

pytestmark = [pytest.mark.feature("L07"), pytest.mark.feature("L15")]


@pytest.fixture
def lake(stored: StoredLake, monkeypatch: pytest.MonkeyPatch) -> SwappedTables:
    """Return a lake with two tables that are due."""
    monkeypatch.setattr(dropped_tables, "OFFER_S", 0.0)
    monkeypatch.setattr(ObjectStore, "deletes_at_once", 2)
    made = SwappedTables(stored.root, replace(stored.server.config, tables=KEEPS_A_DAY.tables), is_dated=True)
    made.swap(2)
    return made


def objects(lake: SwappedTables, folder: str) -> list[str]:
    """Return the names in a folder and in its log."""
    store, root = store_of(lake.root), f"{lake.root}/{folder}"
    return [*store.folders(root), *store.folders(f"{root}/log")]


def assert_removed(lake: SwappedTables, folders: list[str]) -> None:
    assert [known.name for known in lake.lake.positions.recorded.values()] == ["live"]
    assert not lake.lake.positions.leaving
    assert [objects(lake, folder) for folder in folders] == [[], []]
    assert objects(lake, lake.folder(lake.live)) == ["log", "replica", "_delta_log"]


def test_a_removal_that_was_killed_is_completed(lake: SwappedTables) -> None:
    folders = [lake.folder(table) for table in lake.dropped]

    def kill(point: Enum) -> None:
        if point is MaintenanceFailpoint.DROPPED_FILES_DELETED:
            raise Crash(point)

    arm(kill)
    try:
        with pytest.raises(Crash):
            Removing(lake).run()
    finally:
        arm(None)
    lake.reopen()
    assert sorted(lake.lake.positions.leaving) == sorted(folders)
    lake.change()
    Removing(lake).run()
    assert_removed(lake, folders)


def test_an_outage_delays_a_removal(stored: StoredLake, lake: SwappedTables) -> None:
    folders = [lake.folder(table) for table in lake.dropped]
    removing = Removing(lake)

    def refused(request: StoreRequest, forward: Forward) -> Answer:
        return refusal(503, "SlowDown") if request.method == "POST" else forwarded(request, forward)

    stored.server.fault = refused
    removing.run()
    assert removing.metrics.registry.get_sample_value(MAINTENANCE_FAILURES, {"capture": "test"}) == 1
    assert sorted(lake.lake.positions.leaving) == sorted(folders)
    stored.server.fault = forwarded
    Removing(lake).run()
    assert_removed(lake, folders)


def test_a_command_deletes_nothing_more_once_a_pipeline_has_started(stored: StoredLake, lake: SwappedTables) -> None:
    folders = [lake.folder(table) for table in lake.dropped]
    known = lake.lake.positions.recorded.values()
    listed = {table.folder: str(table.position) for table in known if table.folder in folders}
    facts = CaptureFacts("c", "/state", (), awaits_promotion=False)
    with hold_lake(stored.root, IDENTITY, facts, "spark", alone=True) as hold:

        def check() -> None:
            """Let a pipeline start, remove the same tables, and give the folder of one to the next table."""
            with hold_lake(stored.root, IDENTITY, replace(facts, host="b"), "spark"):
                lake.reopen()
                Removing(lake).run()
                lake.swap(1)
                hold.check()

        with pytest.raises((LakeTaken, LakeInUse)):
            remove_tables(lake.root, Positions(lake.root, IDENTITY), CAPTURE, listed, check)
    assert lake.folder(lake.dropped[-1]) == folders[0]
    assert objects(lake, folders[0]) == ["log", "replica", "_delta_log"]
