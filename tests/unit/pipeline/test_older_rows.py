"""Rows of older versions of a table for a log that has later ones."""

import pyarrow as pa
import pytest

from tidemark.pipeline.earlier.older_rows import older_rows
from tidemark.pipeline.sinks.rows.logshape import OLD


def rows(kind: pa.DataType, values: list[object], name: str = "c") -> pa.Table:
    """Return rows with one column, and an old row in the last one."""
    old = [None] * (len(values) - 1) + [{name: values[0]}]
    nested = pa.struct([pa.field(name, kind)])
    return pa.table({name: pa.array(values, kind), OLD: pa.array(old, nested)})


def log(**kinds: pa.DataType) -> pa.Schema:
    fields = [pa.field(name, kind) for name, kind in kinds.items()]
    return pa.schema([*fields, pa.field(OLD, pa.struct(fields))])


def test_values_of_a_type_that_the_column_holds_are_converted_in_both_rows() -> None:
    found = older_rows(rows(pa.int32(), [1, 2]), log(c=pa.int64()))
    assert found.schema.field("c").type == pa.int64()
    assert found.to_pylist() == [{"c": 1, OLD: None}, {"c": 2, OLD: {"c": 1}}]


def test_other_values_are_in_a_column_named_by_their_type_and_the_column_keeps_its_own() -> None:
    found = older_rows(rows(pa.string(), ["a", "b"]), log(c=pa.int32()))
    assert found.to_pylist() == [{"c__string": "a", OLD: None}, {"c__string": "b", OLD: {"c__string": "a"}}]


def test_a_column_that_was_dropped_since_is_added() -> None:
    found = older_rows(rows(pa.int32(), [1], name="gone"), log(c=pa.int32()))
    assert found.to_pylist() == [{"gone": 1, OLD: {"gone": 1}}]


def test_a_column_is_spelled_as_in_the_log() -> None:
    assert older_rows(rows(pa.int32(), [1], name="C"), log(c=pa.int32())).schema.names == ["c", OLD]


@pytest.mark.parametrize("stored", [pa.int32(), pa.string(), pa.int64()])
def test_null_has_the_place_of_the_values_of_its_type(stored: pa.DataType) -> None:
    found = older_rows(rows(pa.int32(), [None, 5]), log(c=stored))
    assert [row["c"] for row in found.to_pylist()] == [None, "5" if stored == pa.string() else 5]
