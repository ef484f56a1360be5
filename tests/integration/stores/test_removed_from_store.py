"""A dropped table is removed from an object store, also after a kill and an outage; other objects stay."""

from dataclasses import replace
from enum import Enum

import pytest

from tests.support.lakes.lakes import Crash
from tests.support.lakes.removing import KEEPS_A_DAY, Removing
from tests.support.lakes.stored_lake import StoredLake
from tests.support.lakes.swapped_tables import SwappedTables
from tests.support.servers.object_store import Answer, Forward, StoreRequest, forwarded, refusal
from tidemark.io.host.failpoints import arm
from tidemark.pipeline.failpoints import MaintenanceFailpoint
from tidemark.pipeline.landing import dropped_tables
from tidemark.pipeline.landing.metrics import MAINTENANCE_FAILURES
from tidemark.pipeline.storage.object_store import ObjectStore
from tidemark.pipeline.storage.stores import store_of

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
