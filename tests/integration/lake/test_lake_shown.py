"""What the log, the metrics and `cdcctl status` show of tables that are stale, stopped, or have a break."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.support.lakes.lakes import CAPTURE, IDENTITY
from tests.support.processes.cdcctl import cdcctl, succeeded
from tidemark.engine.selection import Selection
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.log_output import get_log
from tidemark.io.process.metrics import CAPTURE_LABEL
from tidemark.io.readers.state_capture import StateCapture
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import Lsn, Oid, TimelineId
from tidemark.model.position import Position, Sequence
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.delta_log.lineage import TableStopped
from tidemark.pipeline.lake.faults import Fault, FaultKind, LakeEntry, LogBreak
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.positions.table_position import TablePosition, TableState
from tidemark.pipeline.landing.feed import Feed
from tidemark.pipeline.landing.metrics import (
    NEWEST_ROW_LAG_SECONDS,
    TABLES,
    TABLES_STALE,
    TABLES_STOPPED,
    PipelineMetrics,
)
from tidemark.pipeline.landing.progress import STALE_HINT, PipelineProgress, report_changes
from tidemark.pipeline.sinks.lake_batch import LakeBatch

DEADLINE_S = 60.0
AT = Position(TimelineId(1), Lsn(1000), 0)
LATER = Position(TimelineId(1), Lsn(2000), 0)
WITH_PROPERTY = LakeEntry(fault=Fault(FaultKind.STOPPED, "delta.appendOnly restricts writes", AT))


def table(name: str, number: int, state: TableState = TableState.LIVE) -> TablePosition:
    return TablePosition(Oid(5), Oid(number), "public", name, f"5/{number}-public.{name}", state, Sequence(1), AT)


LIVE = (table("kept", 1), table("keyless", 2), table("unkeyed", 3), table("locked", 4), table("broken", 5))
PRESENT = (
    LIVE[0],
    replace(LIVE[1], state=TableState.STALE),
    replace(LIVE[2], state=TableState.BLOCKED),
    replace(LIVE[3], state=TableState.STOPPED, replica=WITH_PROPERTY),
    replace(LIVE[4], breaks=(LogBreak("changed by another writer", AT, LATER),)),
)


def test_the_log_names_a_table_that_became_stale_or_stopped_or_has_a_break_once() -> None:
    before, after = ({(one.database, one.relation): one for one in tables} for tables in (LIVE, PRESENT))
    with capture_logs() as lines:
        report_changes(get_log("test"), before, after)
        report_changes(get_log("test"), after, {of: replace(one, sequence=Sequence(2)) for of, one in after.items()})
    shown = {str(line.pop("table")): line for line in lines if line.pop("role")}
    assert len(lines) == len(shown)
    folders = {name: line.pop("folder") for name, line in shown.items()}
    assert folders == {one.qualified_name: one.folder for one in PRESENT[1:]}
    assert shown == {
        "public.keyless": {
            "event": "replica is stale: the table has no key", "hint": STALE_HINT, "log_level": "warning"
        },
        "public.unkeyed": {"event": "table has no key: log only", "hint": STALE_HINT, "log_level": "warning"},
        "public.locked": {
            "event": "table stopped", "target": "replica", "reason": "delta.appendOnly restricts writes",
            "after": str(AT), "hint": TableStopped.hint, "log_level": "error",
        },
        "public.broken": {
            "event": "log has a break", "reason": "changed by another writer", "after": str(AT), "to": str(LATER),
            "log_level": "warning",
        },
    }  # fmt: skip


@pytest.mark.feature("N16")
def test_the_hint_for_a_table_that_was_given_up_names_the_archive() -> None:
    paused = Fault(FaultKind.PAUSED, "a full disk", AT)
    given_up = replace(LIVE[0], state=TableState.DIVERGED, log=replace(LIVE[0].log, fault=paused.given_up("no room")))
    of = given_up.database, given_up.relation
    with capture_logs() as lines:
        report_changes(get_log("test"), {of: LIVE[0]}, {of: given_up})
    (line,) = lines
    assert line["reason"] == "it was paused (a full disk), and no room"
    assert "cdcctl table resume --archive" in line["hint"]


@pytest.mark.feature("L13")
def test_a_metric_shows_the_age_of_the_newest_row_at_each_scrape(tmp_path: Path) -> None:
    state, root = StateFolder(tmp_path / "state"), str(tmp_path / "lake")
    store = StateStore.create(state, IDENTITY)
    positions, metrics = Positions(root, IDENTITY), PipelineMetrics(CAPTURE)
    progress = PipelineProgress(metrics, get_log("test"), StateCapture(store, Selection()), "spark", root)

    def lag_s() -> float:
        found = metrics.registry.get_sample_value(NEWEST_ROW_LAG_SECONDS, {CAPTURE_LABEL: CAPTURE})
        assert found is not None
        return found

    assert math.isnan(lag_s())
    for sequence, ages_s in enumerate(((90.0, 60.0), (), (3600.0,)), 1):  # no row; a row of the first copy
        now_us = SystemClock().wall_us()
        commits_us = tuple(now_us - int(age_s * 1_000_000) for age_s in ages_s)
        last = LakeBatch("outbox-1", Sequence(sequence), AT, [])
        lsns = tuple(Lsn(AT.commit_lsn - at) for at in range(len(commits_us)))
        feed = Feed(last, 0, 0, AT.commit_lsn, commits_us, lsns)
        progress.landed(feed, positions.tables, Sequence(1), Lsn(AT.commit_lsn + 5000), 0.1)
        first, second = lag_s(), lag_s()
        assert 60 <= first < second < 60 + DEADLINE_S


def test_metrics_and_status_show_stale_and_stopped_tables(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "state")
    store = StateStore.create(state, IDENTITY)
    lake = tmp_path / "lake"
    positions = Positions(str(lake), IDENTITY)
    positions.write("outbox-1", list(PRESENT), Applied(Sequence(1), AT))
    metrics = PipelineMetrics(CAPTURE)
    progress = PipelineProgress(metrics, get_log("test"), StateCapture(store, Selection()), "spark", str(lake))
    last = LakeBatch("outbox-1", Sequence(1), AT, [])
    feed = Feed(last, 0, 0, AT.commit_lsn, (), ())
    progress.landed(feed, positions.tables, Sequence(1), AT.commit_lsn, 0.1)
    for name, value in ((TABLES_STALE, 1), (TABLES_STOPPED, 1), (TABLES, len(PRESENT))):
        assert metrics.registry.get_sample_value(name, {CAPTURE_LABEL: CAPTURE}) == value
    shown = json.loads(succeeded(cdcctl("status", "--json", "--state", state.root)).out)["lake"]["spark"]
    assert shown["stale_replicas"] == ["public.keyless"]
    assert shown["not_written"] == [f"public.locked replica: stopped after {AT}: delta.appendOnly restricts writes"]
