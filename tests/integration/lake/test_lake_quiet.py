"""An unchanged table is checked in rotation, and a copy that does not repair its table is reported."""

import math
from dataclasses import replace
from enum import Enum
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.integration.lake.test_lake_changes import (
    FOLDER,
    OTHER,
    ScriptedLake,
    delete,
    new_lake,
    optimize,
    remove,
    restore,
)
from tests.support.lakes.aged_logs import commit_path
from tests.support.lakes.lakes import Crash, batch, replica_rows
from tests.support.lakes.scripted_table import DATABASE, RELATION, ScriptedTable
from tidemark.io.host.failpoints import arm
from tidemark.io.host.log_output import get_log
from tidemark.model.change import SchemaChange, SchemaEffect, SchemaEvent
from tidemark.model.lsn import Lsn, Oid, Xid
from tidemark.model.position import Sequence
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.folders import delta_tables
from tidemark.pipeline.lake.positions.table_position import TableState
from tidemark.pipeline.landing.progress import report_changes
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.steps import Delivered
from tidemark.pipeline.storage.local_store import LocalStore

CHECKED_PER_BATCH = LocalStore.checks_max
QUIET = 2 * CHECKED_PER_BATCH + 10


def crash_behind_tables(point: Enum) -> None:
    if point is Failpoint.TABLES_DONE:
        raise Crash(point)


class SecondTable:
    """Another table of the lake, which has a change in every batch."""

    def __init__(self) -> None:
        self.table = ScriptedTable(oid=OTHER, name="other")
        self._applied = 0

    def apply_change(self, lake: Lake) -> None:
        self.table.commit()
        self.table.insert({1: self._applied, 2: "a", 3: None})
        delivered = self.table.delivered(start=50)
        lake.apply(batch(delivered[self._applied :]))
        self._applied = len(delivered)


@pytest.mark.feature("L01")
def test_a_quiet_table_that_another_writer_changed_is_found_within_a_bounded_number_of_batches(tmp_path: Path) -> None:
    fed, beside = ScriptedLake(tmp_path), SecondTable()
    lake = new_lake(tmp_path)
    known = lake.positions.tables[DATABASE, RELATION]
    for number in range(QUIET):  # tables that are never opened: the check of each finds the recorded commits
        quiet = replace(known, relation=Oid(30_000 + number), folder=f"quiet/{number}")
        lake.positions.tables[DATABASE, quiet.relation] = quiet
        for folder, version in delta_tables(quiet):
            path = commit_path(tmp_path / folder, version)
            path.parent.mkdir(parents=True)
            path.touch()
    lake.positions.tables[DATABASE, RELATION] = lake.positions.tables.pop((DATABASE, RELATION))  # last in the rotation
    restore(fed, "replica")
    batches = 0
    while lake.positions.tables[DATABASE, RELATION].state is TableState.LIVE:
        assert batches <= math.ceil(QUIET / CHECKED_PER_BATCH)
        beside.apply_change(lake)
        batches += 1
    assert fed.state() is TableState.DIVERGED
    states = [table.state for table in lake.positions.tables.values()]
    assert states.count(TableState.LIVE) == len(states) - 1


@pytest.mark.feature("L02")
def test_maintenance_of_a_quiet_table_is_recorded_and_not_checked_again(tmp_path: Path) -> None:
    fed, beside = ScriptedLake(tmp_path), SecondTable()
    optimize(fed, "log")
    lake = new_lake(tmp_path)
    beside.apply_change(lake)
    assert fed.state() is TableState.LIVE
    assert fed.position().log_version == fed.delta("log").version()
    before = lake.positions.tables[DATABASE, RELATION]
    beside.apply_change(lake)
    assert lake.positions.tables[DATABASE, RELATION] is before


@pytest.mark.feature("L01")
def test_a_table_that_is_ahead_after_a_crash_is_recorded_at_its_next_change(tmp_path: Path) -> None:
    fed, beside = ScriptedLake(tmp_path), SecondTable()
    before = fed.position()
    fed.table.commit()
    fed.table.update((3,), {2: "ahead"})
    arm(crash_behind_tables)
    try:
        with pytest.raises(Crash):
            new_lake(tmp_path).apply(batch(fed.pending()))
    finally:
        arm(None)
    beside.apply_change(new_lake(tmp_path))
    assert fed.position() == before
    fed.apply_pending()
    assert fed.position().position > before.position
    assert replica_rows(tmp_path, FOLDER) == fed.table.expected()
    assert fed.notes[-1] == "ahead"


@pytest.mark.feature("L01")
def test_the_remaining_folders_of_a_dropped_table_may_be_removed(tmp_path: Path) -> None:
    fed, beside = ScriptedLake(tmp_path), SecondTable()
    last = fed.position()
    at = replace(last.position, commit_lsn=Lsn(last.position.commit_lsn + 1))
    relation, kind = fed.table.relation, (SchemaChange.DROP, SchemaEffect.METADATA)
    drop = SchemaEvent(at, at.commit_lsn, DATABASE, Xid(7), *kind, relation, None)
    new_lake(tmp_path).apply(batch([Delivered(Sequence(last.sequence + 1), drop)]))
    assert fed.state() is TableState.DROPPED
    remove(fed, "log")
    remove(fed, "replica")
    lake = new_lake(tmp_path)
    beside.apply_change(lake)
    dropped = fed.position()
    assert dropped.state is TableState.DROPPED
    assert (dropped.log.fault, dropped.replica.fault) == (None, None)


@pytest.mark.feature("L01")
def test_a_copy_that_does_not_repair_its_table_is_reported_once(tmp_path: Path) -> None:
    fed = ScriptedLake(tmp_path)
    delete(fed, "replica")
    assert reasons(fed, "diverges") == [str(fault_reason(fed))]
    fed.delta("replica").alter.set_table_properties({"delta.appendOnly": "true"})
    fed.recopy()
    (reason,) = reasons(fed, "copied")
    assert "delta.appendOnly" in reason
    assert fed.state() is TableState.DIVERGED
    assert reasons(fed, "later") == []


def fault_reason(fed: ScriptedLake) -> str:
    fault = fed.position().replica.fault
    assert fault is not None
    return fault.reason


def reasons(fed: ScriptedLake, note: str) -> list[str]:
    """Write a change into the lake; return the reasons that the log then has."""
    lake = new_lake(fed.root)
    before = lake.positions.tables
    fed.table.commit()
    fed.table.update((3,), {2: note})
    with capture_logs() as lines:
        lake.apply(batch(fed.pending()))
        report_changes(get_log("test"), before, lake.positions.tables)
    fed.applied()
    return [str(line["reason"]) for line in lines if line["event"] == "table diverged"]
