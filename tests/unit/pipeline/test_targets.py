"""What is written to one log or replica: each outcome of a batch, and which table a new copy sets aside."""

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from tests.support.lakes.scripted_table import DATABASE, ScriptedTable
from tidemark.model.change import CopyBoundary, LogicalMessage
from tidemark.model.lsn import Lsn, TimelineId, Xid
from tidemark.model.position import Position
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.delta_log.applied import NOTHING, Applied
from tidemark.pipeline.delta_log.commits import CommitUnreadable
from tidemark.pipeline.delta_log.lineage import NEVER_WRITTEN, Recorded, TableDiverged, TableStopped
from tidemark.pipeline.lake.faults import UNTOUCHED, Fault, FaultKind, LakeEntry
from tidemark.pipeline.lake.layout import UnfitRows
from tidemark.pipeline.lake.tables.lake_table import REOPENED_MAX, LakeTable
from tidemark.pipeline.lake.tables.table_errors import LakeFailed, LakeFull, TableMoved
from tidemark.pipeline.lake.tables.table_opening import table_id
from tidemark.pipeline.sinks.targets import targets
from tidemark.pipeline.sinks.targets.targets import Outcome, TargetTable, apply_batch, catch_up, new_copy
from tidemark.pipeline.sinks.waiting import StoredItem, WaitingItems

APP = "tidemark:test:target"
SCHEMA = pa.schema([("lsn", pa.int64())])
NAME = "table"
COPY_AT = 20
ATTEMPTS = len(targets.RETRY_WAITS_S) + 1
SINCE = Applied(OutboxSequence(3), Position(TimelineId(1), Lsn(2), 0))  # of the lake
TRIES_MAX = 20
RELATION = ScriptedTable().relation
Written = Callable[["ScriptedTarget"], None]


def at(lsn: int) -> Position:
    return Position(TimelineId(1), Lsn(lsn), 0)


def applied_at(lsn: int, generation: int = 1) -> Applied:
    return Applied(OutboxSequence(lsn), at(lsn), generation)


def message(lsn: int) -> StoredItem:
    return OutboxSequence(lsn), LogicalMessage(at(lsn), Lsn(lsn), DATABASE, Xid(0), False, "app", b"")


def boundary(lsn: int, generation: int = 2, *, begin: bool = True) -> StoredItem:
    return OutboxSequence(lsn), CopyBoundary(at(lsn), DATABASE, RELATION, generation, begin, "1:1:")


def diverged(lsn: int, reason: str = "changed") -> Fault:
    return Fault(FaultKind.DIVERGED, reason, at(lsn))


def rows(*lsns: int) -> pa.Table:
    return pa.table([list(lsns)], schema=SCHEMA)


@dataclass
class ScriptedTarget:
    """A table with one row for each applied item, and the errors that the next attempts to apply meet."""

    root: Path
    known: LakeEntry = UNTOUCHED
    applied: Applied = NOTHING
    errors: list[Exception] = field(default_factory=list)
    tries: int = 0

    @property
    def uri(self) -> str:
        return str(self.root / NAME)

    @property
    def rows(self) -> list[int]:
        found: list[int] = DeltaTable(self.uri).to_pyarrow_table().column("lsn").to_pylist()
        return sorted(found)

    @property
    def names(self) -> set[str]:
        return {path.name for path in self.root.iterdir()}

    def write(self, *lsns: int) -> "ScriptedTarget":
        """Create the table as the pipeline does, with an item at each LSN, and record it."""
        self.take(self.apply_batch([message(lsn) for lsn in lsns]))
        return self

    def take(self, outcome: Outcome) -> Outcome:
        self.known, self.applied = outcome.target, outcome.applied
        return outcome

    def apply_batch(self, items: Sequence[StoredItem], *, is_over: bool = False) -> Outcome:
        target = TargetTable(self.uri, APP, self.known, self.applied, self._apply)
        return apply_batch(target, items, SINCE, lambda: is_over)

    def catch_up(self, items: Sequence[StoredItem], *, upto: int, is_last: bool) -> Outcome:
        target = TargetTable(self.uri, APP, self.known, self.applied, self._apply)
        return catch_up(target, items, OutboxSequence(upto), is_last=is_last)

    def recreate(self) -> Outcome:
        """Begin a new copy of a diverged table."""
        if self.known.fault is None:
            self.known = replace(self.known, fault=diverged(10))
        return self.take(self.apply_batch([message(15), boundary(COPY_AT), message(21)]))

    def _apply(self, items: Sequence[StoredItem], recorded: Recorded | None) -> LakeTable:
        self.tries += 1
        assert self.tries <= TRIES_MAX
        if self.errors:
            raise self.errors.pop(0)
        table = LakeTable(self.uri, APP, recorded)
        for sequence, item in items:
            assert isinstance(item, (CopyBoundary, LogicalMessage))
            position = item.position
            if position <= table.applied.position:
                continue
            applied = Applied(sequence, position)
            if not table.exists:
                table.create(SCHEMA, NOTHING)
            if isinstance(item, CopyBoundary):
                table.overwrite(SCHEMA.empty_table(), applied)
            else:
                table.append(rows(position.commit_lsn), applied, merge_schema=True)
        return table


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedTarget:
    monkeypatch.setattr(targets, "RETRY_WAITS_S", (0.0,) * (ATTEMPTS - 1))
    return ScriptedTarget(tmp_path)


def data_file(uri: str) -> Path:
    (name, *_) = DeltaTable(uri).file_uris()
    return Path(name)


def lose_file(target: ScriptedTarget) -> None:
    data_file(target.uri).unlink()


def corrupt(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


# --- which item begins a new copy


@pytest.mark.parametrize(
    ("items", "found"),
    [
        ([boundary(11, 1)], (0, at(11))),
        ([boundary(10, 2)], (0, at(10))),
        ([boundary(9, 2)], (0, at(9))),
        ([boundary(10, 1)], None),
        ([boundary(9, 1)], None),
        ([boundary(11, 1, begin=False)], None),
        ([message(12)], None),
        ([message(9), boundary(9, 1), message(11), boundary(12, 1), boundary(13, 1)], (3, at(12))),
        ([], None),
    ],
)
def test_a_new_copy_is_one_that_began_after_the_fault_or_has_a_greater_generation(
    items: list[StoredItem], found: tuple[int, Position] | None
) -> None:
    assert new_copy(items, applied_at(10), diverged(10)) == found


# --- the outcomes of a batch


def test_a_written_table_is_recorded(target: ScriptedTarget) -> None:
    outcome = target.apply_batch([message(1), message(2)])
    table = LakeTable(target.uri, APP)
    assert (outcome.target, outcome.applied) == (LakeEntry(table.recorded), table.applied)
    assert (outcome.broke, outcome.beside) == (None, None)
    assert outcome.table is not None
    assert target.rows == [1, 2]


@pytest.mark.parametrize("rows_beside", [True, False])
def test_a_table_written_instead_of_the_target_is_named_if_it_exists(target: ScriptedTarget, rows_beside: bool) -> None:  # noqa: FBT001 - a parameter
    beside = LakeTable(f"{target.uri}-beside", APP)
    if rows_beside:
        beside.create(SCHEMA, applied_at(3))
    made = TargetTable(target.uri, APP, UNTOUCHED, NOTHING, lambda _items, _recorded: beside)
    outcome = apply_batch(made, [], SINCE)
    assert (outcome.target, outcome.applied) == (UNTOUCHED, beside.applied)
    assert outcome.beside == ((beside.uri, 0) if rows_beside else None)


def test_a_diverged_table_is_not_written_without_a_new_copy(target: ScriptedTarget) -> None:
    target.write(1)
    target.known = replace(target.known, fault=diverged(1))
    outcome = target.apply_batch([message(2)])
    assert (outcome.target, outcome.applied, outcome.table) == (target.known, target.applied, None)
    assert (target.rows, target.tries) == ([1], 1)


def test_a_table_that_another_writer_changed_diverges_at_its_last_change(target: ScriptedTarget) -> None:
    target.write(1, 7)
    DeltaTable(target.uri).delete("lsn = 1")
    outcome = target.apply_batch([message(8)])
    assert outcome.target.recorded == target.known.recorded
    assert outcome.target.fault is not None
    assert (outcome.target.fault.kind, outcome.target.fault.position) == (FaultKind.DIVERGED, at(7))
    assert "changed by another writer" in outcome.target.fault.reason
    assert target.rows == [7]


def test_the_items_of_a_stopped_table_wait_and_are_applied_before_later_ones(target: ScriptedTarget) -> None:
    target.write(1)
    for lsn in (2, 3):
        target.errors = [TableStopped("a property")]
        outcome = target.take(target.apply_batch([message(lsn)]))
        assert outcome.target.fault == Fault(FaultKind.STOPPED, "a property", at(1))
        assert outcome.beside == WaitingItems(target.uri, APP).written
        target.applied = applied_at(5)  # of the other target of the same table
    assert target.rows == [1]
    assert target.take(target.apply_batch([message(4)])).target.fault is None
    assert target.rows == [1, 2, 3, 4]
    assert list(WaitingItems(target.uri, APP).portions()) == []


def test_a_batch_is_applied_again_while_maintenance_interrupts_it(target: ScriptedTarget) -> None:
    target.errors = [TableMoved(target.uri, "", applied_at(number)) for number in range(1, 2 * REOPENED_MAX)]
    target.apply_batch([message(1)])
    assert target.rows == [1]
    target.tries = 0
    target.errors = [TableMoved(target.uri, "", applied_at(1)) for _ in range(ATTEMPTS * (REOPENED_MAX + 1))]
    assert_paused(target.apply_batch([message(2)]), f"{target.uri} has new commits")
    assert target.tries == ATTEMPTS * (REOPENED_MAX + 1)
    target.tries = 0
    target.errors = [TableMoved(target.uri, "", NOTHING) for _ in range(REOPENED_MAX - 1)]
    target.apply_batch([message(2)])
    assert target.rows == [1, 2]


# --- errors


def assert_paused(outcome: Outcome, reason: str) -> None:
    fault = outcome.target.fault
    assert fault is not None
    assert fault.reason.startswith(reason)
    assert (fault.kind, fault.sequence) == (FaultKind.PAUSED, SINCE.sequence)


def test_a_full_disk_is_raised_as_what_it_is(target: ScriptedTarget) -> None:
    target.write(1)
    full = OSError(errno.ENOSPC, "no space")
    target.errors = [full]
    with pytest.raises(OSError, match="no space") as raised:
        target.apply_batch([message(2)])
    assert raised.value is full
    target.errors = [DeltaError("write failed (os error 28)")]
    with pytest.raises(LakeFull, match=f"{NAME}: write failed"):
        target.apply_batch([message(2)])
    assert target.rows == [1]


@pytest.mark.feature("N16")
@pytest.mark.parametrize(
    "error",
    [LakeFailed("of our own"), DeltaError("Generic error"), UnfitRows("a value"), CommitUnreadable("a commit")],
    ids=repr,
)
def test_a_table_whose_writes_fail_without_damage_is_paused_after_some_attempts(
    target: ScriptedTarget, error: Exception
) -> None:
    target.write(1)
    target.tries = 0
    target.errors = [error] * (ATTEMPTS - 1)
    assert target.apply_batch([message(2)]).target.fault is None
    target.errors = [error] * ATTEMPTS
    paused = target.take(target.apply_batch([message(3)]))
    assert paused.target.fault is not None
    assert paused.target.fault.position == at(1)
    assert_paused(paused, str(error) if not isinstance(error, DeltaError) else f"{target.uri}: Generic error")
    assert target.tries == 2 * ATTEMPTS
    assert target.apply_batch([message(4)]).target == paused.target
    assert (target.rows, target.tries) == ([1, 2], 2 * ATTEMPTS), "it is skipped"


@pytest.mark.feature("N16")
def test_a_paused_table_catches_up_in_slices(target: ScriptedTarget) -> None:
    target.write(1)
    target.errors = [LakeFailed("boom")] * ATTEMPTS
    target.take(target.apply_batch([message(2)]))
    behind = target.take(target.catch_up([message(4)], upto=4, is_last=False))
    assert behind.target.fault == Fault(FaultKind.PAUSED, "boom", at(4), OutboxSequence(4), SINCE.position)
    target.errors = [TableStopped("a property")]
    stopped = target.take(target.catch_up([message(5)], upto=5, is_last=True))
    assert stopped.target.fault == Fault(FaultKind.PAUSED, "a property", at(4), OutboxSequence(4), at(4))
    assert target.take(target.catch_up([message(4), message(5)], upto=5, is_last=True)).target.fault is None
    assert target.rows == [1, 4, 5]


@pytest.mark.feature("N16")
def test_a_diverged_table_whose_copy_cannot_be_written_stays_diverged_with_its_reason(target: ScriptedTarget) -> None:
    target.write(1)
    target.errors = [LakeFailed("boom")] * ATTEMPTS
    target.recreate()
    reason = "changed (a new copy could not be written: boom)"
    assert target.known.fault == diverged(10, reason)
    target.errors = [LakeFailed("again")] * ATTEMPTS
    target.recreate()
    assert target.known.fault == diverged(10, reason)


@pytest.mark.parametrize("error", [DeltaError("not found"), LakeFailed("not found"), pa.ArrowInvalid("not found")])
def test_a_table_that_lost_a_file_diverges(target: ScriptedTarget, error: Exception) -> None:
    target.write(1)
    lose_file(target)
    target.errors = [error]
    fault = target.apply_batch([message(2)]).target.fault
    assert fault is not None
    assert (fault.kind, fault.position) == (FaultKind.DIVERGED, at(1))
    assert "is missing" in fault.reason


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENOMEM])
def test_a_table_neither_diverges_nor_is_paused_while_the_host_fails(target: ScriptedTarget, number: int) -> None:
    target.write(1)
    lose_file(target)
    target.errors = [OSError(number, os.strerror(number))]
    with pytest.raises((OSError, LakeFailed)):
        target.apply_batch([message(2)])


def test_a_table_does_not_diverge_while_its_disk_fails(target: ScriptedTarget) -> None:
    target.write(1)
    lose_file(target)
    target.errors = [OSError(errno.EIO, os.strerror(errno.EIO))] * ATTEMPTS
    assert_paused(target.apply_batch([message(2)]), f"{target.uri}: [Errno 5]")


def test_a_stop_ends_the_search_for_damage(target: ScriptedTarget) -> None:
    target.write(1)
    corrupt(data_file(target.uri))
    target.errors = [DeltaError("boom"), DeltaError("boom")]
    assert target.apply_batch([message(2)]).target.fault is not None
    target.write(3)
    target = replace(target, root=target.root / "intact", known=UNTOUCHED, applied=NOTHING, errors=[])
    target.write(1)
    target.errors = [DeltaError("boom")]
    with pytest.raises(LakeFailed, match="boom"):
        target.apply_batch([message(2)], is_over=True)


@pytest.mark.parametrize(("name", "is_part"), [("waiting", True), ("staged.diverged-1", False)])
def test_damage_is_sought_in_the_tables_beside_a_target_that_are_in_use(
    target: ScriptedTarget,
    name: str,
    is_part: bool,  # noqa: FBT001 - a parameter
) -> None:
    target.write(1)
    beside = f"{target.uri}-{name}"
    write_deltalake(beside, rows(1))
    data_file(beside).unlink()
    target.errors = [DeltaError("boom")] * ATTEMPTS
    fault = target.apply_batch([message(2)]).target.fault
    assert fault is not None
    assert fault.kind is (FaultKind.DIVERGED if is_part else FaultKind.PAUSED)


# --- a new copy


def test_a_new_copy_recreates_a_diverged_table_with_a_break(target: ScriptedTarget) -> None:
    target.write(1)
    WaitingItems(target.uri, APP).keep([message(2)])
    outcome = target.recreate()
    assert outcome.target.fault is None
    assert outcome.broke is not None
    assert (outcome.broke.reason, outcome.broke.after, outcome.broke.to) == ("changed", at(10), at(COPY_AT))
    assert (target.rows, target.applied.position) == ([21], at(21))
    assert list(WaitingItems(target.uri, APP).portions()) == []


@pytest.mark.parametrize("error", [TableDiverged("once more"), TableStopped("once more")], ids=repr)
def test_a_new_copy_that_cannot_be_written_leaves_the_table_diverged(target: ScriptedTarget, error: Exception) -> None:
    target.write(1)
    before, applied = target.known.recorded, target.applied
    target.errors = [error]
    outcome = target.recreate()
    reason = f"once more (a new copy began at {at(COPY_AT)} and could not be written)"
    assert (outcome.target, outcome.applied) == (LakeEntry(before, diverged(10, reason)), applied)
    assert (outcome.table, outcome.broke) == (None, None)


# --- which table is set aside


def delete_rows(target: ScriptedTarget) -> None:
    DeltaTable(target.uri).delete()


def restore(target: ScriptedTarget) -> None:
    """Return to the folder as it was some commits before."""
    for path in sorted(Path(target.uri, "_delta_log").glob("*.json"))[2:]:
        path.unlink()


def remove(target: ScriptedTarget) -> None:
    Path(target.uri).rename(target.root / "moved")


def leave_a_folder(target: ScriptedTarget) -> None:
    remove(target)
    Path(target.uri).mkdir()


def begin_the_copy(target: ScriptedTarget) -> None:
    """Apply a copy with other columns, without a record of it."""
    add_column(target, applied_at(COPY_AT))


def replace_by_ours(target: ScriptedTarget) -> None:
    """Create the table as an interrupted attempt does."""
    remove(target)
    LakeTable(target.uri, APP).create(SCHEMA, NOTHING)


def add_column(target: ScriptedTarget, applied: Applied) -> None:
    table = LakeTable(target.uri, APP)
    table.append(pa.table({"lsn": [1], "more": [1]}), applied, merge_schema=True)


def add_a_column_before_the_copy(target: ScriptedTarget) -> None:
    add_column(target, applied_at(COPY_AT - 1))


def replace_by_another(target: ScriptedTarget) -> None:
    remove(target)
    for lsn in range(5):
        write_deltalake(target.uri, rows(lsn), mode="append")


def replace_by_another_with_a_short_log(target: ScriptedTarget) -> None:
    replace_by_another(target)
    DeltaTable(target.uri).create_checkpoint()
    for path in Path(target.uri, "_delta_log").glob("*.json"):
        path.unlink()


def shorten_the_log(target: ScriptedTarget) -> None:
    DeltaTable(target.uri).create_checkpoint()
    for path in sorted(Path(target.uri, "_delta_log").glob("*.json"))[:-1]:
        path.unlink()


def lose_a_file(target: ScriptedTarget) -> None:
    lose_file(target)
    target.known = replace(target.known, fault=diverged(10, "a file is missing"))


def damage_a_known_file(target: ScriptedTarget) -> None:
    path = data_file(target.uri)
    corrupt(path)
    target.known = replace(target.known, fault=diverged(10, f"data file {path} is damaged"))


def damage_another_file(target: ScriptedTarget) -> None:
    corrupt(data_file(target.uri))


KEPT = [delete_rows, restore, begin_the_copy, replace_by_ours, shorten_the_log, damage_another_file]
SET_ASIDE = [
    *(add_a_column_before_the_copy, replace_by_another, replace_by_another_with_a_short_log),
    *(lose_a_file, damage_a_known_file),
]


@pytest.mark.parametrize("written", [*KEPT, *SET_ASIDE], ids=lambda written: written.__name__)
def test_only_a_table_that_cannot_be_continued_is_set_aside(target: ScriptedTarget, written: Written) -> None:
    target.write(1, 2, 3)
    written(target)
    before = DeltaTable(target.uri).metadata().id
    assert target.recreate().target.fault is None
    assert (f"{NAME}.diverged-1" in target.names) is (written in SET_ASIDE)
    assert (DeltaTable(target.uri).metadata().id == before) is (written in KEPT)
    assert 21 in target.rows


@pytest.mark.parametrize("written", [remove, leave_a_folder], ids=lambda written: written.__name__)
def test_a_table_that_does_not_exist_is_created(target: ScriptedTarget, written: Written) -> None:
    target.write(1)
    written(target)
    target.recreate()
    assert target.names == {NAME, "moved"}
    assert target.rows == [21]


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_table_without_a_record_is_kept_only_if_tidemark_created_it(target: ScriptedTarget, is_ours: bool) -> None:  # noqa: FBT001 - a parameter
    if is_ours:
        LakeTable(target.uri, APP).create(SCHEMA, NOTHING)
    else:
        write_deltalake(target.uri, rows(5))
    assert target.known.recorded == NEVER_WRITTEN
    target.recreate()
    assert target.rows == [21]
    assert (f"{NAME}.diverged-1" in target.names) is not is_ours


def test_each_table_that_is_set_aside_gets_the_next_free_name(target: ScriptedTarget) -> None:
    for number in (1, 2, 3):
        target.known, target.applied = UNTOUCHED, NOTHING
        write_deltalake(target.uri, rows(number), mode="overwrite")
        target.recreate()
        Path(target.uri).rename(target.root / f"done-{number}")
    assert {name for name in target.names if "diverged" in name} == {
        f"{NAME}.diverged-{number}" for number in (1, 2, 3)
    }


def test_a_table_whose_id_cannot_be_read_is_not_taken_for_another_writers(target: ScriptedTarget) -> None:
    assert table_id(target.uri) == ""
    target.write(1)
    assert table_id(target.uri) == target.known.recorded.id
    first = next(iter(sorted(Path(target.uri, "_delta_log").glob("*.json"))))
    first.write_text("{")
    with pytest.raises(LakeFailed, match=NAME):
        table_id(target.uri)
