"""A diverged log continues with a recorded break after an operator accepted it; messages continue without a copy."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.integration.lake.test_lake_changes import (
    FOLDER,
    ROWS,
    Changed,
    ScriptedLake,
    add_column,
    damage,
    delete,
    files,
    id_of,
    lose_commits,
    new_lake,
    put_back,
    recreate,
    remove,
    restore,
)
from tests.support.lakes.lakes import Crash, CrashAt, batch, log_rows, replica_rows
from tests.support.lakes.scripted_table import DATABASE, RELATION
from tidemark.io.host.failpoints import arm
from tidemark.model.change import LogicalMessage
from tidemark.model.lsn import INVALID_OID, Lsn, TimelineId, Xid
from tidemark.model.position import Position, Sequence
from tidemark.pipeline.lake.positions.table_position import TableState
from tidemark.pipeline.sinks.lake_batch import LakeBatch


@pytest.mark.feature("L01")
@pytest.mark.parametrize("change", [remove, restore, put_back, recreate, damage, add_column, lose_commits], ids=id_of)
def test_a_log_that_another_writer_changed_continues_with_a_recorded_break(tmp_path: Path, change: Changed) -> None:
    fed = ScriptedLake(tmp_path)
    change(fed, "log")
    before, last = files(fed, "log"), fed.position().position
    fed.update(5, "lost")
    assert fed.state() is TableState.DIVERGED
    assert files(fed, "log") == before
    assert replica_rows(tmp_path, FOLDER) == fed.table.expected()
    fed.accept_break()
    fed.recopy()
    copied_at = fed.pending()[0].item.position  # type: ignore[union-attr]
    fed.update(7, "live again")
    assert fed.state() is TableState.LIVE
    assert fed.notes[-1:] == ["live again"]
    assert "lost" not in fed.notes
    (broke,) = fed.position().breaks
    assert (broke.after, broke.to) == (last, copied_at)
    assert fed.path("log") in broke.reason


@pytest.mark.feature("L01")
def test_a_log_does_not_continue_at_a_copy_until_this_break_is_accepted(tmp_path: Path) -> None:
    fed = ScriptedLake(tmp_path)
    delete(fed, "log")
    delete(fed, "replica")
    before = files(fed, "log")
    fed.update(5, "lost")
    fed.accepted[f"{DATABASE}.{RELATION}"] = str(Position(TimelineId(1), Lsn(1), 0))  # an earlier break
    fed.recopy()
    fed.update(6, "lost as well")
    assert fed.state() is TableState.DIVERGED
    assert (fed.position().breaks, fed.position().replica.fault) == ((), None)
    assert files(fed, "log") == before
    assert replica_rows(tmp_path, FOLDER) == fed.table.expected()
    fed.accept_break()
    fed.update(7, "no copy yet")
    assert fed.state() is TableState.DIVERGED
    fed.recopy(3)
    fed.update(8, "live again")
    assert (fed.state(), len(fed.position().breaks)) == (TableState.LIVE, 1)
    assert fed.notes[-1:] == ["live again"]


@pytest.mark.feature("L01")
def test_a_new_copy_of_a_diverged_table_may_be_interrupted_anywhere(tmp_path: Path) -> None:
    nth, points = 0, CrashAt(0)
    while nth <= len(points.passed):
        fed = ScriptedLake(tmp_path / str(nth))
        recreate(fed, "log")
        restore(fed, "replica")
        fed.update(5, "lost")
        fed.accept_break()
        fed.recopy()
        crash = CrashAt(nth)
        arm(crash)
        try:
            new_lake(fed.root, fed.accepted).apply(batch(fed.pending()))
        except Crash:
            pass
        finally:
            arm(None)
        points = crash if nth == 0 else points
        fed.update(6, "live again")
        assert fed.state() is TableState.LIVE
        assert replica_rows(fed.root, FOLDER) == fed.table.expected()
        assert [row["_op"] for row in log_rows(fed.root, FOLDER)] == ["c"] * ROWS + ["u"]
        assert len(fed.position().breaks) == 1
        assert {path.name for path in (fed.root / FOLDER).iterdir()} == {"log", "log.diverged-1", "replica"}
        nth += 1


@pytest.mark.feature("L01")
def test_a_message_log_that_another_writer_changed_is_not_written(tmp_path: Path) -> None:
    uri = str(tmp_path / f"{DATABASE}/messages")
    for number in (1, 2):
        new_lake(tmp_path).apply(message(number))
    DeltaTable(uri).delete()
    version = DeltaTable(uri).version()
    new_lake(tmp_path).apply(message(3))
    assert DeltaTable(uri).version() == version
    diverged = new_lake(tmp_path).positions.tables[DATABASE, INVALID_OID]
    assert diverged.state is TableState.DIVERGED
    accepted = {str(DATABASE): str(diverged.position)}
    lake = new_lake(tmp_path, accepted)
    lake.apply(message(4))
    lake.apply(message(5))
    goes_on = new_lake(tmp_path).positions.tables[DATABASE, INVALID_OID]
    assert goes_on.state is TableState.LIVE
    assert [(broke.after, broke.to.commit_lsn) for broke in goes_on.breaks] == [(diverged.position, 504)]
    assert sorted(row["_commit_lsn"] for row in DeltaTable(uri).to_pyarrow_table().to_pylist()) == [504, 505]


def message(number: int) -> LakeBatch:
    at = Position(TimelineId(1), Lsn(500 + number), 0)
    message = LogicalMessage(at, at.commit_lsn, DATABASE, Xid(0), False, "app", b"hello")
    return LakeBatch("one", Sequence(number), at, [(Sequence(number), message)])
