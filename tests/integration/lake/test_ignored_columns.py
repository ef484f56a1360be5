"""The schema policy `ignore`: log and replica keep their columns, whatever happens to those of the source."""

import random
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.lakes.lakes import IDENTITY, CrashingFeed, batch, log_rows, replica_rows
from tests.support.lakes.scripted_table import DATABASE, ScriptedTable, Value, act, column
from tidemark.io.process.lake_config import LakeConfig, LakeTableConfig, SchemaPolicy, Written
from tidemark.model.relation import ReplicaIdentity
from tidemark.pipeline.lake.faults import FaultKind
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.positions.table_position import TablePosition, TableState
from tidemark.pipeline.landing.table_overview import faults_of
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.targets import targets

pytestmark = [pytest.mark.feature("P25"), pytest.mark.feature("L15")]
FOLDER = f"{DATABASE}/public/Orders"
IGNORE = LakeTableConfig("Order*", schema_policy=SchemaPolicy.IGNORE)
EVOLVE = LakeTableConfig("Order*")


class PinnedLake:
    """A lake of one table; each landing opens it again."""

    def __init__(self, root: Path, table: ScriptedTable | None = None) -> None:
        self.root, self.table = root, table or ScriptedTable()
        self._landed = 0

    def land(self, policy: LakeTableConfig = IGNORE) -> TablePosition:
        """Write the new changes, then all of them again, which changes nothing."""
        items = self.table.delivered()
        new, self._landed = items[self._landed :], len(items)
        for _ in range(2):
            lake = Lake(str(self.root), IDENTITY, shape_of, constants_of, config=LakeConfig((policy,)))
            lake.apply(batch(new))
        return lake.positions.tables[DATABASE, self.table.oid]

    def insert(self, **values: Value) -> None:
        """Insert a row; a column that is not named is NULL."""
        names = {c.name: c.number for c in self.table.relation.live_columns}
        self.table.insert({number: values.get(name) for name, number in names.items()})
        self.table.commit()

    @property
    def replica(self) -> list[tuple[object, ...]]:
        return [tuple(row.values()) for row in replica_rows(self.root, FOLDER)]

    @property
    def columns(self) -> list[str]:
        return list(replica_rows(self.root, FOLDER)[0])

    @property
    def log(self) -> list[dict[str, object]]:
        return log_rows(self.root, FOLDER)


@pytest.fixture
def pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PinnedLake:
    monkeypatch.setattr(targets, "RETRY_WAITS_S", ())
    lake = PinnedLake(tmp_path)
    lake.insert(id=1, note="a", big="b")
    return lake


def paused(table: TablePosition) -> set[str]:
    assert table.state is TableState.PAUSED
    return {fault.reason for _, fault in faults_of(table)}


def test_a_new_column_is_left_out_of_log_and_replica(pinned: PinnedLake) -> None:
    pinned.land()
    pinned.table.add_column("extra", "constant")
    pinned.insert(id=2, extra="x", big="B")
    pinned.table.update((1,), {2: "A"}, unchanged=(3,))
    assert pinned.land().state is TableState.LIVE
    assert pinned.columns == ["id", "note", "big"]
    assert pinned.replica == [(1, "A", "b"), (2, None, "B")]
    assert [row.get("extra", "left out") for row in pinned.log] == ["left out"] * 3
    assert [row["_unchanged"] for row in pinned.log] == [None, None, ["big"]]


def test_a_renamed_column_keeps_its_name_and_a_new_one_does_not_take_it(pinned: PinnedLake) -> None:
    pinned.land()
    pinned.table.rename_column(2, "remark")
    pinned.land()
    pinned.table.add_column("note")
    pinned.insert(id=2, remark="r", note="n", big=None)
    assert pinned.land().state is TableState.LIVE
    assert pinned.replica == [(1, "a", "b"), (2, "r", None)]
    assert [row["note"] for row in pinned.log] == ["a", "r"]


def test_a_removed_column_stays_and_is_null_in_rows_written_from_then_on(pinned: PinnedLake) -> None:
    pinned.insert(id=2, note="c", big="d")
    pinned.land()
    pinned.table.drop_column(2)
    pinned.table.add_column("later")
    pinned.table.update((1,), {3: "new"})
    pinned.insert(id=3, big="e", later="x")
    assert pinned.land().state is TableState.LIVE
    assert pinned.replica == [(1, None, "new"), (2, "c", "d"), (3, None, "e")]
    assert [row["note"] for row in pinned.log] == ["a", "c", None, None]


def test_a_table_rewritten_by_ddl_keeps_its_columns(pinned: PinnedLake) -> None:
    pinned.land()
    pinned.table.drop_column(3)
    pinned.table.add_column("later")
    pinned.table.rewrite(2, "text", {(1,): "rewritten"})
    pinned.table.commit()
    assert pinned.land().state is TableState.LIVE
    assert pinned.columns == ["id", "note", "big"]
    assert pinned.replica == [(1, "rewritten", None)]


def test_a_narrower_type_is_converted_and_another_one_pauses_the_table(tmp_path: Path) -> None:
    pinned = PinnedLake(tmp_path)
    pinned.table.relation = replace(
        pinned.table.relation, columns=(column(1, "id", "int8"), column(2, "note", "text"), column(3, "big", "text"))
    )
    pinned.insert(id=1, note="a")
    pinned.land()
    pinned.table.rewrite(1, "int4", {(1,): 1})
    pinned.insert(id=2)
    assert pinned.land().state is TableState.LIVE
    assert pinned.replica == [(1, "a", None), (2, None, None)]
    pinned.table.rewrite(1, "text", {(1,): "1", (2,): "2"})
    pinned.insert(id="3")
    reasons = paused(pinned.land())
    policy = "schema_policy = 'ignore' in [[lake.tables]], pattern Order*"
    assert reasons == {f"public.Orders: column id is string now, and int64 in the lake, and {policy}"}
    assert pinned.replica == [(1, "a", None), (2, None, None)], "it contains all changes before"


def test_a_key_of_a_column_that_is_left_out_pauses_the_replica(pinned: PinnedLake) -> None:
    pinned.land()
    pinned.table.add_column("code")
    keyed = replace(pinned.table.relation, identity_columns=(4,), primary_key=(4,))
    pinned.table.relation = keyed
    pinned.table.alter(keyed.columns)
    (reason,) = paused(pinned.land())
    assert "its key is code, of which the lake does not have all columns" in reason


def test_a_copy_continues_a_replica_that_was_paused_alone(pinned: PinnedLake) -> None:
    pinned.land()
    pinned.table.add_column("code")
    keyed = replace(pinned.table.relation, identity_columns=(4,), primary_key=(4,))
    pinned.table.relation = keyed
    pinned.table.alter(keyed.columns)
    pinned.insert(id=2, code="c")
    paused(pinned.land())
    pinned.table.copy(1, [{1: 1, 2: "a", 3: "b", 4: "x"}])
    pinned.insert(id=3, code="y")
    assert pinned.land().state is TableState.LIVE
    assert pinned.replica == [(1, "a", "b", "x"), (3, None, None, "y")]
    assert [row["id"] for row in pinned.log] == [1, 2, 1, 3]


def test_whole_rows_lose_one_of_those_that_are_equal_without_the_new_column(tmp_path: Path) -> None:
    table = ScriptedTable(identity=ReplicaIdentity.FULL)
    table.relation = replace(table.relation, primary_key=())
    pinned = PinnedLake(tmp_path, table)
    pinned.insert(id=1, note="a")
    pinned.land()
    table.add_column("extra")
    pinned.insert(id=2, note="b", extra="x")
    table.delete((1,))
    assert pinned.land().state is TableState.LIVE
    assert pinned.replica == [(2, "b", None)]
    table.drop_column(3)
    assert any("it has no key, and rows without the dropped columns" in reason for reason in paused(pinned.land()))


def test_a_copy_takes_the_present_columns(pinned: PinnedLake) -> None:
    pinned.land()
    pinned.table.add_column("extra")
    pinned.table.drop_column(2)
    pinned.land()
    pinned.table.copy(1, [{1: 1, 3: "b", 4: "e"}])
    pinned.table.commit()
    assert pinned.land().state is TableState.LIVE
    assert pinned.columns == ["id", "big", "extra"]
    pinned.table.add_column("another")
    pinned.insert(id=2, extra="f")
    pinned.land()
    assert pinned.replica == [(1, "b", "e"), (2, None, "f")]


def test_the_columns_are_those_from_before_the_policy_took_effect(pinned: PinnedLake) -> None:
    pinned.table.add_column("extra")
    pinned.land(EVOLVE)
    pinned.table.rename_column(2, "remark")
    pinned.land()
    pinned.insert(id=2, remark="r", extra="x")
    pinned.land()
    assert pinned.replica == [(1, "a", "b", None), (2, "r", None, "x")]
    pinned.table.add_column("later")
    pinned.land()
    pinned.insert(id=3, later="l")
    assert pinned.land(EVOLVE).pinned is None
    assert pinned.columns == ["id", "remark", "big", "extra", "later"]


def test_a_table_whose_first_changes_were_given_up_gets_the_columns_of_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "RETRY_WAITS_S", ())
    pinned, folder = PinnedLake(tmp_path), tmp_path / FOLDER
    folder.parent.mkdir(parents=True)
    folder.touch()  # it cannot be created
    pinned.insert(id=1, note="a", big="b")
    assert pinned.land().state is TableState.PAUSED
    folder.unlink()
    pinned.table.add_column("extra", "constant")
    pinned.insert(id=2, note="c", extra="x", big="d")
    of, items = (DATABASE, pinned.table.oid), pinned.table.delivered()
    lake = Lake(str(tmp_path), IDENTITY, shape_of, constants_of, config=LakeConfig((IGNORE,)))
    lake.give_up([of], "no room")
    lake.apply(batch(items[1:]))
    assert lake.positions.tables[of].state is TableState.DIVERGED
    assert lake.positions.tables[of].pinned is None
    missed = [(one.sequence, one.item) for one in items]
    lake.catch_up(of, missed, lake.positions.applied.sequence, FaultKind.DIVERGED)
    assert lake.positions.tables[of].state is TableState.LIVE
    assert pinned.columns == ["id", "note", "big"]
    assert pinned.replica == [(1, "a", "b"), (2, "c", "d")]


def test_a_table_with_only_a_log_is_not_paused_for_its_key(pinned: PinnedLake) -> None:
    only_log = LakeTableConfig("Order*", schema_policy=SchemaPolicy.IGNORE, write=Written.LOG)
    pinned.land(only_log)
    pinned.table.add_column("code")
    pinned.table.relation = replace(pinned.table.relation, identity_columns=(4,), primary_key=(4,))
    pinned.table.alter(pinned.table.relation.columns)
    pinned.insert(id=2, code="c")
    assert pinned.land(only_log).state is TableState.LIVE
    assert [row["id"] for row in pinned.log] == [1, 2]


ACTIONS = (
    *("insert", "insert", "update", "keep", "delete", "move", "move and keep"),
    *("cut", "commit", "truncate", "add", "add constant", "drop", "rename"),
)
STEPS = st.tuples(st.sampled_from(ACTIONS), st.integers(0, 5))


class IgnoringFeed(CrashingFeed):
    """Feeds a lake whose tables ignore changes of their columns."""

    config = LakeConfig((IGNORE,))


@settings(max_examples=12)
@given(st.lists(STEPS, min_size=4, max_size=22), st.integers(0, 1 << 32))
def test_the_replica_equals_the_pinned_columns_of_the_source_after_any_crashes(
    script: list[tuple[str, int]], seed: int
) -> None:
    table = ScriptedTable()
    table.insert({1: 100, 2: "first", 3: None})
    for step, (action, key) in enumerate(script):
        act(table, action, key, step)
    table.commit()
    table.insert({c.number: 99 if c.number == 1 else "99" for c in table.relation.live_columns})
    kept = [tuple(row.get(number) for number in (1, 2, 3)) for row in table.rows.values()]
    with TemporaryDirectory() as folder:
        IgnoringFeed(Path(folder), random.Random(seed)).feed(table.delivered())
        rows = [tuple(row.values()) for row in replica_rows(Path(folder), FOLDER)]
        assert sorted(rows, key=repr) == sorted(kept, key=repr)
        assert len(log_rows(Path(folder), FOLDER)) == table.changes
