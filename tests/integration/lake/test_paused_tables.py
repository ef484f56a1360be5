"""A table that cannot be written is paused alone: the others continue, and it catches up from the outbox."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.lakes.lakes import Crash, CrashAt, folder_of, log_rows, replica_rows
from tests.support.lakes.paused_lake import READER, PausedLake
from tests.support.lakes.scripted_table import DATABASE, ScriptedTable, column
from tests.support.servers.small_disk import needs_mount, read_only
from tests.support.workloads.feeder import RandomTables, group_of
from tidemark.io.host.failpoints import arm
from tidemark.io.process.lake_config import DEFAULT_LAKE, LakeConfig, LakeTableConfig, SchemaPolicy
from tidemark.io.readers.accepted_breaks import log_key
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.readers.resume_requests import request_resume, requested_keys
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeGroup, LogicalMessage, SchemaChange, SchemaEffect, SchemaEvent
from tidemark.model.lsn import INVALID_OID, Lsn, Oid, Xid
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.faults import FaultKind
from tidemark.pipeline.lake.positions.table_position import TableState
from tidemark.pipeline.lake.tables.table_errors import LakeFailed
from tidemark.pipeline.landing.behind import slices as table_slices
from tidemark.pipeline.sinks.targets import targets
from tidemark.pipeline.sinks.targets.slow_writes import SLOW_BATCHES

SEED = 5
FED_BETWEEN_CRASHES = 6
FAILPOINTS_OF_A_SLICE = 9
IGNORING = LakeConfig((LakeTableConfig("failing", schema_policy=SchemaPolicy.IGNORE),))
pytestmark = needs_mount


@pytest.fixture
def lake(tmp_path: Path) -> PausedLake:
    return PausedLake(tmp_path)


@pytest.fixture(autouse=True)
def without_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "RETRY_WAITS_S", (0.0,))


def assert_exact(lake: PausedLake, *tables: ScriptedTable) -> None:
    for table in tables:
        folder = lake.position(table).folder
        assert replica_rows(lake.lake, folder) == table.expected()
        log = log_rows(lake.lake, folder)
        assert len(log) == len({(row["_commit_lsn"], row["_ordinal"]) for row in log}) == table.changes


class ThreeTables:
    """Three tables with random changes, in steps."""

    def __init__(self) -> None:
        self._world = RandomTables(SEED)
        self.failing, *self.others = self._world.tables

    def step(self, groups: int = 4) -> list[ChangeGroup]:
        return list(self._world.groups(groups))


@pytest.mark.feature("N16")
@pytest.mark.parametrize("parts", [("log",), ("replica",), ("log", "replica")], ids="-".join)
def test_a_table_that_cannot_be_written_is_paused_alone_and_catches_up(
    lake: PausedLake, monkeypatch: pytest.MonkeyPatch, parts: tuple[str, ...]
) -> None:
    tables = ThreeTables()
    lake.feed(tables.step())
    lake.land()
    contained = lake.held
    assert contained == lake.head
    with lake.unwritable(tables.failing, parts):
        for _ in range(3):
            lake.feed(tables.step())
            lake.land()
            assert_exact(lake, *tables.others)
        paused = lake.position(tables.failing)
        assert paused.state is TableState.PAUSED
        faults = {name: entry.fault for name, entry in (("log", paused.log), ("replica", paused.replica))}
        assert {name for name, fault in faults.items() if fault is not None} == set(parts)
        assert all("Read-only file system" in fault.reason for fault in faults.values() if fault is not None)
        assert lake.held == contained < lake.head, "the outbox keeps the changes of the paused table"
        assert lake.resume(tables.failing.oid) == 1, "it fails again, and the request is closed"
        assert lake.position(tables.failing).state is TableState.PAUSED
    lake.land()
    assert lake.position(tables.failing).state is TableState.PAUSED, "only the operator resumes it"
    monkeypatch.setattr(table_slices, "PORTION_BYTES", 1)
    assert lake.resume(tables.failing.oid) > 2
    assert lake.position(tables.failing).state is TableState.LIVE
    assert requested_keys(lake.state, "spark") == []
    assert lake.held == lake.head
    lake.feed(tables.step())
    lake.land()
    assert_exact(lake, tables.failing, *tables.others)


@pytest.mark.feature("N16")
@pytest.mark.parametrize("is_lagging", [False, True], ids=["it fails", "it lags"])
def test_a_crash_at_any_point_of_a_catch_up_loses_and_doubles_nothing(
    lake: PausedLake,
    monkeypatch: pytest.MonkeyPatch,
    is_lagging: bool,  # noqa: FBT001 - a parameter
) -> None:
    tables = ThreeTables()
    lake.feed(tables.step())
    lake.land()
    with lake.lagging(tables.failing) if is_lagging else lake.unwritable(tables.failing):
        while lake.position(tables.failing).state is not TableState.PAUSED:
            lake.feed(tables.step())
            lake.land()
        lake.feed(tables.step(24))
        lake.land()
    monkeypatch.setattr(table_slices, "PORTION_BYTES", 10_000)
    request_resume(lake.state, "spark", f"{DATABASE}.{tables.failing.oid}")
    crashes = set[object]()
    for nth in count(1):
        crash = CrashAt(nth % FAILPOINTS_OF_A_SLICE + 1)
        with OutboxReader.open(StateFolder(lake.state)) as outbox:
            arm(crash)
            try:
                slices = lake.continue_resume(outbox)
            except Crash:
                crashes.add(crash.passed[crash.nth - 1])
            else:
                if not slices:
                    break
            finally:
                arm(None)
        if nth < FED_BETWEEN_CRASHES:
            lake.feed(tables.step(1))
            lake.land()
    assert {Failpoint.TABLE_CAUGHT_UP, Failpoint.TABLE_RESUMED, Failpoint.REPLICA_CHANGED} <= crashes
    assert lake.position(tables.failing).state is TableState.LIVE
    assert_exact(lake, tables.failing, *tables.others)


@pytest.mark.feature("N16")
def test_a_paused_table_does_not_hold_the_outbox_beyond_the_bound(lake: PausedLake) -> None:
    tables = ThreeTables()
    lake.bytes_max = 100_000
    lake.feed(tables.step())
    lake.land()
    with lake.unwritable(tables.failing):
        held = [lake.held]
        while lake.position(tables.failing).state is not TableState.DIVERGED:
            lake.feed(tables.step())
            lake.land()
            held.append(lake.held)
        assert len(held) > 2
        assert len(set(held[:-1])) == 1
        assert held[-1] == lake.head, "given up: the outbox is trimmed"
        fault = lake.position(tables.failing).replica.fault
        assert fault is not None
        assert "more than the 100000 of --paused-bytes" in fault.reason
        assert lake.resume(tables.failing.oid) == 0
    assert_exact(lake, *tables.others)
    lake.accept_break(tables.failing)
    failing = tables.failing
    failing.commit(failing.lsn + 10_000_000)
    begun = len(failing.items)
    failing.copy(2, list(failing.rows.values()))
    lake.feed([group_of(failing.items[begun:])])
    lake.land()
    recopied = lake.position(failing)
    assert recopied.state is TableState.LIVE
    assert len(recopied.breaks) == 1
    assert replica_rows(lake.lake, recopied.folder) == failing.expected()


def schema_event(table: ScriptedTable, name: str | None) -> SchemaEvent:
    """Rename the table, or drop it."""
    table.commit(table.lsn + 50)
    before, change = table.relation, SchemaChange.DROP if name is None else SchemaChange.ALTER
    after = None if name is None else replace(before, name=name)
    if after is not None:
        table.relation = after
    at = table.next_position()
    return SchemaEvent(at, Lsn(table.lsn), DATABASE, Xid(7), change, SchemaEffect.METADATA, before, after)


FAIL, LAG = "fails", "lags"
each_cause = pytest.mark.parametrize("cause", [FAIL, LAG])


@contextmanager
def pausing(lake: PausedLake, table: ScriptedTable, cause: str) -> Iterator[None]:
    """Let a table be paused with one of its next batches."""
    with lake.unwritable(table) if cause == FAIL else lake.lagging(table):
        yield


class OneTable:
    """A table beside another one, which is fed in single steps."""

    def __init__(self, lake: PausedLake) -> None:
        self.lake = lake
        self.table, self.other = ScriptedTable(name="failing"), ScriptedTable(oid=Oid(20001), name="other")
        self._fed = [0, 0]

    def land(self) -> None:
        """Deliver what is new, the changes of the other table last, and write it into the lake."""
        for number, table in enumerate((self.table, self.other)):
            table.cut()
            if new := table.items[self._fed[number] :]:
                self.lake.feed([group_of(new)])
            self._fed[number] = len(table.items)
        self.lake.land()

    def insert(self, key: int) -> None:
        """Insert a row into both tables."""
        lsn = max(self.table.lsn, self.other.lsn) + 100
        for number, table in enumerate((self.table, self.other)):
            table.commit(lsn + number)
            table.insert({1: key, 2: f"row {key}", 3: None})

    def write(self, key: int) -> None:
        """Insert a row, and let the pipeline write it."""
        self.insert(key)
        self.land()

    def write_until_paused(self, key: int) -> None:
        """Insert rows in batches, until the table is paused."""
        while self.lake.position(self.table).state is not TableState.PAUSED:
            self.write(key)
            key += 1

    def resume_exactly(self) -> None:
        """Resume the table: it is written again, and both tables are as their changes make them."""
        self.lake.resume(self.table.oid)
        assert self.lake.position(self.table).state is TableState.LIVE
        assert_exact(self.lake, self.table, self.other)


@pytest.mark.feature("N16")
@each_cause
def test_a_table_that_is_renamed_while_it_is_paused_is_resumed_under_its_new_name(lake: PausedLake, cause: str) -> None:
    world = OneTable(lake)
    world.write(1)
    with pausing(lake, world.table, cause):
        world.write_until_paused(10)
        world.table.add_event(schema_event(world.table, "renamed"))
        world.write(3)
        assert lake.position(world.table).qualified_name == "public.renamed"
    lake.resume(world.table.oid)
    resumed = lake.position(world.table)
    assert (resumed.qualified_name, resumed.state) == ("public.renamed", TableState.LIVE)
    assert_exact(lake, world.table, world.other)


@pytest.mark.feature("N16")
@each_cause
def test_a_table_that_is_dropped_while_it_is_paused_gets_its_last_changes(lake: PausedLake, cause: str) -> None:
    world = OneTable(lake)
    world.write(1)
    with pausing(lake, world.table, cause):
        world.write_until_paused(10)
        world.table.add_event(schema_event(world.table, None))
        world.land()
        dropped = lake.position(world.table)
        assert (dropped.state, dropped.replica.is_faulty(FaultKind.PAUSED)) == (TableState.DROPPED, True)
        assert lake.held < lake.head
    lake.resume(world.table.oid)
    dropped = lake.position(world.table)
    assert (dropped.state, dropped.log.fault, dropped.replica.fault) == (TableState.DROPPED, None, None)
    assert lake.held == lake.head
    assert_exact(lake, world.table, world.other)


@pytest.mark.feature("N16", "L08")
def test_a_table_that_lags_is_paused_alone_after_some_batches(lake: PausedLake) -> None:
    world = OneTable(lake)
    world.write(1)
    with lake.lagging(world.table):
        for key in range(2, SLOW_BATCHES + 1):
            world.write(key)
        assert lake.position(world.table).state is TableState.LIVE
        world.write(SLOW_BATCHES + 1)
        paused = lake.position(world.table)
        assert paused.state is TableState.PAUSED
        assert paused.replica.fault is not None
        assert "3 batches in succession waited for it, the last one 60.0 s" in paused.replica.fault.reason
        assert_exact(lake, world.table, world.other)
        assert lake.held == lake.head, "the slow batch itself is in the lake"
    world.write(10)
    assert lake.held < lake.head
    assert lake.position(world.table).sequence == paused.sequence
    assert_exact(lake, world.other)
    world.resume_exactly()


@pytest.mark.feature("N16")
def test_a_table_that_lags_does_not_hold_the_outbox_beyond_the_bound(lake: PausedLake) -> None:
    lake.bytes_max = 20_000
    world = OneTable(lake)
    world.write(1)
    with lake.lagging(world.table):
        world.write_until_paused(2)
    key = 10
    while lake.position(world.table).state is TableState.PAUSED:
        world.write(key)
        key += 1
    assert lake.position(world.table).state is TableState.DIVERGED
    assert lake.held == lake.head
    assert_exact(lake, world.other)


@pytest.mark.feature("N16")
@each_cause
def test_a_new_copy_resumes_a_paused_table_by_itself(lake: PausedLake, cause: str) -> None:
    world = OneTable(lake)
    world.write(1)
    with pausing(lake, world.table, cause):
        world.write_until_paused(2)
        world.write(10)
    assert lake.slices() == 0, "nobody has resumed it"
    world.table.commit(max(world.table.lsn, world.other.lsn) + 1_000)
    world.table.copy(2, list(world.table.rows.values()))
    world.land()
    assert lake.slices() > 0
    resumed = lake.position(world.table)
    assert (resumed.state, resumed.breaks) == (TableState.LIVE, ())
    assert replica_rows(lake.lake, resumed.folder) == world.table.expected()
    world.write(20)
    assert_exact(lake, world.table, world.other)


@pytest.mark.feature("N16")
def test_a_replica_that_is_paused_alone_continues_with_a_copy_in_its_batch(lake: PausedLake) -> None:
    world = OneTable(lake)
    world.write(1)
    with lake.unwritable(world.table, ["replica"]):
        world.write(2)
        world.write(3)
    request_resume(lake.state, READER, log_key(DATABASE, world.table.oid))
    world.table.commit(world.other.lsn + 1)
    world.table.copy(2, list(world.table.rows.values()))
    world.land()
    assert lake.position(world.table).state is TableState.LIVE
    assert requested_keys(lake.state, READER) == []
    assert_exact(lake, world.table, world.other)


@pytest.mark.feature("N16")
def test_a_copy_in_one_slice_of_a_resumed_table_determines_the_columns_of_the_next_slices(
    lake: PausedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.config, world = IGNORING, OneTable(lake)
    world.write(1)
    with lake.unwritable(world.table):
        world.write(2)
        world.table.commit(world.other.lsn + 1)
        world.table.add_column("extra")
        world.table.copy(2, [{1: 1, 2: "copied", 3: None, 4: "x"}])
        world.land()
        world.table.commit()
        world.table.insert({1: 3, 2: "last", 3: None, 4: "y"})
        world.land()
    monkeypatch.setattr(table_slices, "PORTION_BYTES", 1)
    assert lake.slices() > 2
    assert_exact(lake, world.table, world.other)


@pytest.mark.feature("N16")
def test_a_log_that_is_paused_alone_skips_no_change_that_does_not_fit_the_columns_of_a_later_copy(
    lake: PausedLake,
) -> None:
    lake.config, world = IGNORING, OneTable(lake)
    key, note, _ = world.table.relation.columns
    world.table.relation = replace(world.table.relation, columns=(key, note, column(3, "size", "int8")))
    world.write(1)
    with lake.unwritable(world.table, ["log"]):
        world.write(2)
    world.table.commit(world.other.lsn + 1)
    world.table.rewrite(3, "int4", {(1,): 10, (2,): 20})
    world.table.copy(2, list(world.table.rows.values()))
    world.land()
    assert lake.slices() > 0
    fault = lake.position(world.table).log.fault
    assert fault is not None
    assert "column size is int64 now, and int32 in the lake" in fault.reason
    lake.config = DEFAULT_LAKE
    world.resume_exactly()


@pytest.mark.feature("N16")
def test_a_new_table_that_cannot_be_created_is_paused_alone(lake: PausedLake) -> None:
    world = OneTable(lake)
    world.other.insert({1: 1, 2: "first", 3: None})
    world.land()
    with lake.unwritable(world.table):
        for key in (2, 3):
            world.write(key)
        assert lake.position(world.table).state is TableState.PAUSED
        assert_exact(lake, world.other)
    world.resume_exactly()


@pytest.mark.feature("N16")
def test_a_stopped_table_that_is_paused_as_well_applies_all_changes_in_order(lake: PausedLake) -> None:
    world = OneTable(lake)
    world.write(1)
    replica = str(lake.lake / folder_of(world.table.relation) / "replica")
    DeltaTable(replica).alter.set_table_properties({"delta.appendOnly": "true"})
    world.write(2)
    assert lake.position(world.table).state is TableState.STOPPED
    DeltaTable(replica).alter.set_table_properties({"delta.appendOnly": "false"})
    with lake.unwritable(world.table):
        world.write(3)
        assert lake.position(world.table).state is TableState.PAUSED
    world.resume_exactly()


@pytest.mark.feature("N16")
def test_a_property_that_restricts_writes_keeps_a_resumed_table_paused(lake: PausedLake) -> None:
    world = OneTable(lake)
    world.write(1)
    replica = str(lake.lake / folder_of(world.table.relation) / "replica")
    with lake.unwritable(world.table):
        world.write(2)
    DeltaTable(replica).alter.add_constraint({"short": "id < 2"})
    lake.resume(world.table.oid)
    fault = lake.position(world.table).replica.fault
    assert fault is not None
    assert fault.kind is FaultKind.PAUSED
    assert "the constraint short" in fault.reason
    DeltaTable(replica).alter.drop_constraint("short")
    lake.resume(world.table.oid)
    assert_exact(lake, world.table, world.other)


@pytest.mark.feature("N16")
def test_a_paused_log_of_messages_is_resumed(lake: PausedLake) -> None:
    def message(lsn: int) -> ChangeGroup:
        table = ScriptedTable(lsn=lsn)
        at = table.next_position()
        return group_of([LogicalMessage(at, Lsn(lsn - 50), DATABASE, Xid(7), True, "note", b"text")])

    lake.feed([message(1000)])
    lake.land()
    messages = lake.lake / str(DATABASE) / "messages"
    lake.feed([message(2000)])
    with read_only(messages):
        lake.land()
    assert lake.open().positions.tables[DATABASE, INVALID_OID].state is TableState.PAUSED
    request_resume(lake.state, "spark", str(DATABASE))
    with OutboxReader.open(StateFolder(lake.state)) as outbox:
        assert lake.continue_resume(outbox) == 1
    assert lake.open().positions.tables[DATABASE, INVALID_OID].state is TableState.LIVE
    found = DeltaTable(str(messages)).to_pyarrow_table().column("_commit_lsn").to_pylist()
    assert sorted(found) == [1000, 2000]


@pytest.mark.feature("N16")
def test_a_table_that_is_paused_when_another_outbox_continues_needs_a_new_copy(lake: PausedLake) -> None:
    world = OneTable(lake)
    world.write(1)
    with lake.unwritable(world.table):
        world.write(2)
    lake.use_outbox("0c0d")
    world.write(3)
    diverged = lake.position(world.table)
    assert diverged.state is TableState.DIVERGED
    assert diverged.log.fault is not None
    assert "another outbox continues the lake" in diverged.log.fault.reason
    assert_exact(lake, world.other)


@pytest.mark.feature("N16")
def test_a_lake_that_cannot_be_written_at_all_pauses_no_table(lake: PausedLake) -> None:
    world = OneTable(lake)
    world.write(1)
    world.insert(2)
    with read_only(lake.lake), pytest.raises(LakeFailed, match="_events"):
        world.land()
    lake.land()
    assert lake.position(world.table).state is TableState.LIVE
    assert_exact(lake, world.table, world.other)
