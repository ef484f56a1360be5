"""The lane of each row, and the sections of a batch between rows that change their key."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.forged.groups import COLUMNS, TEXT, relation
from tidemark.model.change import AFTER, BEFORE, BeforeKind
from tidemark.model.relation import Relation, ReplicaIdentity, TypeKind
from tidemark.runtime.pool.keys import NO_LANE, key_columns, lanes_of, rows_at, sections_of

Row = tuple[str, BeforeKind, Mapping[str, object] | None, Mapping[str, object] | None]
LANES = 4


def rows(*changes: Row) -> pa.RecordBatch:
    ops, kinds, befores, afters = zip(*changes, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(ops), pa.array(kinds, pa.int8()), pa.array(befores, COLUMNS), pa.array(afters, COLUMNS)],
        ["_op", "_before_kind", BEFORE, AFTER],
    )


def insert(number: int | None) -> Row:
    return "i", BeforeKind.NONE, None, {"id": number, "note": "x"}


def update(number: int, before: int | None = None, kind: BeforeKind = BeforeKind.KEY) -> Row:
    old = None if before is None else {"id": before, "note": None}
    return "u", BeforeKind.NONE if before is None else kind, old, {"id": number, "note": "y"}


def delete(number: int | None) -> Row:
    kind = BeforeKind.NONE if number is None else BeforeKind.KEY
    return "d", kind, None if number is None else {"id": number, "note": None}, None


@pytest.mark.feature("A05")
def test_all_changes_of_a_key_have_one_lane_also_in_another_batch() -> None:
    one = lanes_of(rows(*map(insert, range(100))), relation(), LANES)
    two = lanes_of(rows(*map(update, range(100))), relation("renamed"), LANES)
    three = lanes_of(rows(*map(delete, range(100))), relation(), LANES)
    assert one.tolist() == two.tolist() == three.tolist()
    assert set(one.tolist()) == set(range(LANES))


@pytest.mark.feature("A05")
def test_a_row_that_changes_its_key_or_whose_key_is_unknown_has_no_lane() -> None:
    full = BeforeKind.FULL
    found = lanes_of(rows(update(1, 2), update(1, 1, full), delete(None), insert(None), insert(1)), relation(), LANES)
    assert [lane == NO_LANE for lane in found] == [True, False, True, True, False]
    assert found[1] == found[4]


def with_key(*numbers: int, identity: ReplicaIdentity = ReplicaIdentity.DEFAULT) -> Relation:
    return replace(relation(), replica_identity=identity, identity_columns=numbers, primary_key=(1,))


def with_note_of(
    changed: Relation, *, name: str, kind: TypeKind = TypeKind.BASE, namespace: str = "pg_catalog"
) -> Relation:
    described = replace(TEXT, name=name, kind=kind, namespace=namespace)
    return replace(changed, columns=(changed.columns[0], replace(changed.columns[1], type=described)))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (with_key(1), ("id",)),
        (with_key(2, identity=ReplicaIdentity.INDEX), ("note",)),
        (with_key(1, 2, identity=ReplicaIdentity.INDEX), ("id", "note")),
        (with_key(identity=ReplicaIdentity.FULL), ("id",)),
        (with_key(identity=ReplicaIdentity.NOTHING), ()),
        (with_note_of(with_key(1, 2), name="numeric"), ()),
        (with_note_of(with_key(1, 2), name="text", namespace="own"), ()),
        (with_note_of(with_key(1, 2), name="mood", namespace="own", kind=TypeKind.ENUM), ("id", "note")),
        (with_note_of(with_key(1), name="numeric"), ("id",)),
    ],
    ids=str,
)
def test_the_key_is_the_replica_identity_of_types_whose_equal_values_have_equal_bytes(
    changed: Relation, expected: Sequence[str]
) -> None:
    assert key_columns(changed) == tuple(expected)


@given(
    st.lists(
        st.builds(insert, st.integers(1, 99) | st.none())
        | st.builds(update, st.integers(1, 99))
        | st.just(delete(None)),
        min_size=1,
    )
)
def test_rows_have_the_same_lanes_in_a_batch_of_which_no_row_has_an_old_one(changes: Sequence[Row]) -> None:
    beside_an_old_row = lanes_of(rows(*changes, update(1, 1)), relation(), LANES)
    assert lanes_of(rows(*changes), relation(), LANES).tolist() == beside_an_old_row.tolist()[:-1]


@given(st.data(), st.lists(st.sampled_from([insert(1), insert(None), update(2, 3), delete(4)]), min_size=1))
def test_rows_at_indexes_are_those_rows(data: st.DataObject, changes: Sequence[Row]) -> None:
    batch = rows(*changes)
    chosen = np.array(sorted(data.draw(st.sets(st.integers(0, len(changes) - 1)))), np.int64)
    found = rows_at(batch, chosen)
    assert found.to_pylist() == [batch.to_pylist()[index] for index in chosen]
    assert found.schema == batch.schema


def test_a_table_without_a_key_has_one_lane_for_all_rows_also_where_they_change() -> None:
    found = lanes_of(rows(insert(1), insert(2), update(3, 4), delete(None)), with_key(), LANES)
    assert found.tolist() == [relation().oid % LANES] * 4


def test_a_key_of_two_columns_is_divided_by_both() -> None:
    keyed = with_key(1, 2, identity=ReplicaIdentity.INDEX)
    notes = [("i", BeforeKind.NONE, None, {"id": 1, "note": str(number)}) for number in range(100)]
    found = lanes_of(rows(*notes), keyed, LANES)
    assert len(set(found.tolist())) == LANES
    assert lanes_of(rows(*reversed(notes)), keyed, LANES).tolist() == found.tolist()[::-1]


@given(lanes=st.lists(st.integers(-1, 2), min_size=1, max_size=30))
def test_sections_are_the_longest_ranges_of_rows_with_or_without_lanes(lanes: list[int]) -> None:
    found = sections_of(np.array(lanes, dtype=np.int64))
    assert [row for start, end in found for row in range(start, end)] == list(range(len(lanes)))
    kinds = [{lane == NO_LANE for lane in lanes[start:end]} for start, end in found]
    assert all(len(kind) == 1 for kind in kinds)
    assert all(before != after for before, after in pairwise(kinds))
