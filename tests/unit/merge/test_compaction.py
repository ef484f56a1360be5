"""Compaction of a run of changes: the last state of each key, and nothing else."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.lakes.scripted_table import Row, ScriptedTable, Value
from tidemark.model.change import ChangeBatch
from tidemark.model.relation import ReplicaIdentity
from tidemark.pipeline.lake.layout import lake_columns
from tidemark.pipeline.merge import compaction
from tidemark.pipeline.merge.compaction import Compacted, RowKey, compact


@pytest.fixture(scope="module", autouse=True, params=[compaction.LISTED_MAX, 0], ids=["listed", "by Arrow"])
def listed_max(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run each test with the way of few rows, and with that of more rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "LISTED_MAX", request.param)
        yield


Rows = dict[tuple[Value, ...], Row]
KEYS = st.integers(0, 4)


def compact_script(table: ScriptedTable, before: Rows) -> Compacted:
    """Compact all changes of `table` since it had the rows `before`."""
    table.cut()
    batches = [item.rows for item in table.items if isinstance(item, ChangeBatch)]

    def fetch(keys: Sequence[RowKey], names: Sequence[str]) -> dict[RowKey, dict[str, object]]:
        numbers = {c.name: c.number for c in table.relation.live_columns}
        return {
            key: {name: row[numbers[name]] for name in names}
            for key, row in ((tuple(key), before.get(tuple(key))) for key in keys)  # type: ignore[arg-type]
            if row is not None
        }

    return compact(pa.Table.from_batches(batches), lake_columns(table.relation), ("id",), fetch)


def applied(compacted: Compacted, before: Rows) -> list[dict[str, object]]:
    """Apply the compacted changes to a dict as a replica does."""
    rows: dict[object, dict[str, object]] = {
        row[1]: {"id": row[1], "note": row[2], "big": row[3]} for row in before.values()
    }
    for key in compacted.removed.column("id").to_pylist():
        rows.pop(key, None)
    for at, put in enumerate(compacted.puts.to_pylist()):
        kept = {name: rows[put["id"]][name] for name, flags in compacted.kept.items() if flags[at].as_py()}
        rows[put["id"]] = {**put, **kept}
    return sorted(rows.values(), key=repr)


@given(
    st.sampled_from([ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL]),
    st.sets(KEYS),
    st.lists(st.tuples(st.sampled_from("iudm"), KEYS, KEYS, st.booleans()), min_size=1, max_size=30),
)
def test_a_compacted_run_has_the_effect_of_its_changes_one_by_one(
    identity: ReplicaIdentity, present: set[int], script: list[tuple[str, int, int, bool]]
) -> None:
    before: Rows = {(k,): {1: k, 2: "old", 3: f"big {k}"} for k in present}
    table = ScriptedTable(identity=identity, rows=dict(before))
    for step, (action, key, other, keeps) in enumerate(script):
        if action == "i" and (key,) not in table.rows:
            table.insert({1: key, 2: f"note {step}", 3: f"big {step}"})
        elif (key,) not in table.rows:
            continue
        elif action == "d":
            table.delete((key,))
        elif action == "u":
            table.update((key,), {2: f"note {step}"} if keeps else {3: f"big {step}"}, (3,) if keeps else ())
        elif action == "m" and (other,) not in table.rows:
            table.update((key,), {1: other, 2: f"note {step}"}, (3,) if keeps else ())
    if not table.changes:
        return
    compacted = compact_script(table, before)
    keys = compacted.removed.column("id").to_pylist() + compacted.puts.column("id").to_pylist()
    assert len(keys) == len(set(keys))
    assert applied(compacted, before) == table.expected()


@pytest.mark.feature("P05")
def test_an_unchanged_value_comes_from_the_insert_in_the_same_run() -> None:
    table = ScriptedTable()
    table.insert({1: 1, 2: "a", 3: "long"})
    table.update((1,), {2: "b"}, unchanged=(3,))
    compacted = compact_script(table, {})
    assert compacted.puts.to_pylist() == [{"id": 1, "note": "b", "big": "long"}]
    assert not compacted.kept


@pytest.mark.feature("P05")
def test_an_unchanged_value_that_only_the_replica_has_is_marked_as_kept() -> None:
    table = ScriptedTable(rows={(1,): {1: 1, 2: "a", 3: "long"}})
    table.update((1,), {2: "b"}, unchanged=(3,))
    compacted = compact_script(table, {})
    assert compacted.kept["big"].to_pylist() == [True]


@pytest.mark.feature("P05")
def test_an_unchanged_value_stays_in_the_replica_also_beside_rows_whose_value_changed() -> None:
    before: Rows = {(1,): {1: 1, 2: "a", 3: "one"}, (2,): {1: 2, 2: "b", 3: "two"}}
    table = ScriptedTable(rows=dict(before))
    table.update((1,), {2: "c"}, unchanged=(3,))
    table.update((2,), {3: "changed"})
    compacted = compact_script(table, before)
    assert compacted.kept["big"].to_pylist() == [True, False]
    assert applied(compacted, before) == table.expected()


def test_rows_that_swap_keys_keep_their_unchanged_values() -> None:
    before: Rows = {(1,): {1: 1, 2: "a", 3: "one"}, (2,): {1: 2, 2: "b", 3: "two"}}
    table = ScriptedTable(rows=dict(before))
    table.update((1,), {1: 9}, unchanged=(3,))
    table.update((2,), {1: 1}, unchanged=(3,))
    table.update((9,), {1: 2}, unchanged=(3,))
    assert applied(compact_script(table, before), before) == table.expected()


def test_only_inserts_of_new_keys_may_be_appended() -> None:
    table = ScriptedTable()
    table.insert({1: 1, 2: "a", 3: None})
    assert compact_script(table, {}).only_new
    table.update((1,), {2: "b"})
    assert not compact_script(table, {}).only_new


@pytest.mark.parametrize(
    ("keys", "only_new"),
    [([1, 2, 3], True), ([3, 1, 2], True), ([3, 1, 3], False), ([1, 3, 3], False), ([3, 3, 1], False)],
)
def test_inserts_are_appended_in_any_order_but_not_two_of_one_key(keys: list[int], only_new: bool) -> None:  # noqa: FBT001
    table = ScriptedTable()
    for step, key in enumerate(keys):
        table.insert({1: key, 2: f"note {step}", 3: None})
    compacted = compact_script(table, {})
    assert compacted.only_new is only_new
    assert applied(compacted, {}) == table.expected()


def test_a_row_with_a_changed_key_that_the_replica_lacks_is_not_inserted_incompletely() -> None:
    there: Row = {1: 5, 2: "b", 3: "there"}
    table = ScriptedTable(rows={(1,): {1: 1, 2: "a", 3: "long"}, (5,): dict(there)})
    table.update((1,), {1: 2}, unchanged=(3,))
    table.update((5,), {1: 6}, unchanged=(3,))
    assert applied(compact_script(table, {(5,): there}), {(5,): there}) == [{"id": 6, "note": "b", "big": "there"}]
