"""The application's functions on batches and on rows: what they may return, and what is refused."""

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.samples.changed_rows import batch_of, bound, rows_of
from tidemark import BadTransform, Change, OnBatch, OnRow, TransformFailed
from tidemark.transforms import transform

ROWS = batch_of(("i", None, {"id": 1, "name": "a"}), ("u", {"id": 2}, {"id": 2, "name": "b"}), ("d", {"id": 3}, None))
Function = Callable[[pa.RecordBatch], pa.RecordBatch | None]


def only_ids(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with the column id alone."""
    for side in ("_before", "_after"):
        column = rows.column(side)
        ids = pa.StructArray.from_arrays([pc.struct_field(column, "id")], ["id"], mask=column.is_null())
        rows = rows.set_column(rows.schema.get_field_index(side), side, ids)
    return rows


def test_unchanged_columns_keep_their_names_when_a_function_drops_others() -> None:
    def without_name(rows: pa.RecordBatch) -> pa.RecordBatch:
        for side in ("_before", "_after"):
            column = rows.column(side)
            fields = [field for field in column.type if field.name != "name"]
            columns = [pc.struct_field(column, field.name) for field in fields]
            kept = pa.StructArray.from_arrays(columns, fields=fields, mask=column.is_null())
            rows = rows.set_column(rows.schema.get_field_index(side), side, kept)
        return rows

    rows = batch_of(("u", None, {"id": 1}), ("u", None, {"id": 2}), unchanged=[bytes([0b10110]), None])
    (found,) = bound(OnBatch(without_name)).apply(rows)
    assert [change.unchanged for change in found] == [("email", "born"), ()]


def upper(change: Change) -> Change | None:
    if change.after is None:
        return None
    return replace(change, after={**change.after, "name": str(change.after["name"]).upper()})


def test_a_function_of_batches_changes_columns_and_rows() -> None:
    plan = bound(OnBatch(only_ids))
    (found,) = plan.apply(ROWS)
    assert plan.shape.names == ("id",)
    assert rows_of(found) == [("i", None, {"id": 1}), ("u", {"id": 2}, {"id": 2}), ("d", {"id": 3}, None)]
    assert bound(OnBatch(lambda rows: rows if not rows.num_rows else None)).apply(ROWS) == ()
    assert bound(OnBatch(only_ids, tables="public.orders")).steps == ()


def test_a_function_that_calls_exit_has_failed() -> None:
    def leave(_change: Change) -> Change:
        raise SystemExit(0)

    with pytest.raises(TransformFailed, match=r"OnRow\(.*leave\) raised SystemExit on rows of public.customers"):
        bound(OnRow(leave)).apply(ROWS)


def test_a_function_of_rows_changes_and_leaves_out_rows() -> None:
    (found,) = bound(OnRow(upper)).apply(ROWS)
    assert rows_of(found) == [("i", None, {"id": 1, "name": "A"}), ("u", {"id": 2}, {"id": 2, "name": "B"})]
    (found,) = bound(OnRow(upper, operations="u")).apply(ROWS)
    assert [after and after["name"] for _, _, after in rows_of(found)] == ["a", "B", None]
    assert bound(OnRow(lambda _change: None)).apply(ROWS) == ()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda rows: rows.num_rows, "it returned int, not a RecordBatch or None"),
        (lambda rows: rows.drop_columns("_op"), "it returned rows of public.customers without _op"),
        (lambda rows: rows.set_column(0, "_op", pa.array([1] * len(rows), pa.int64())), "it returned _op as int64"),
        (lambda rows: rows.set_column(11, "_after", rows.column("_op")), "must be structs of the same columns"),
    ],
)
def test_a_function_that_returns_no_such_batch_is_refused_at_the_start(function: Function, message: str) -> None:
    with pytest.raises(TransformFailed, match=rf"OnBatch\(.*\): .*{message}"):
        bound(OnBatch(function))


def test_the_columns_of_later_batches_are_compared_with_those_that_were_checked_and_not_derived_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    returned = [ROWS.arrow] * 3 + [only_ids(ROWS.arrow)]
    plan = bound(OnBatch(lambda rows: returned.pop(0) if rows.num_rows else rows))
    plan.apply(ROWS)
    with monkeypatch.context() as patched:
        patched.setattr(transform, "batch_schema", None)  # a call would fail
        plan.apply(ROWS)
        plan.apply(ROWS)
    with pytest.raises(TransformFailed, match="other columns"):
        plan.apply(ROWS)


def test_a_function_that_returns_other_columns_later_is_refused() -> None:
    plan = bound(OnBatch(lambda rows: only_ids(rows) if rows.num_rows else rows))
    with pytest.raises(TransformFailed, match=r"other columns for public.customers than for no rows"):
        plan.apply(ROWS)


def test_a_function_that_loses_the_key_is_refused() -> None:
    def without_key(rows: pa.RecordBatch) -> pa.RecordBatch:
        for side in ("_before", "_after"):
            names = pa.StructArray.from_arrays([pc.struct_field(rows.column(side), "name")], ["name"])
            rows = rows.set_column(rows.schema.get_field_index(side), side, names)
        return rows

    with pytest.raises(BadTransform, match="without id, which is in the key"):
        bound(OnBatch(without_key))


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ({"id": 1, "nam": "x"}, "a column nam, which public.customers does not have"),
        ({"id": "secret"}, "of another type"),
    ],
)
def test_a_row_that_does_not_fit_the_columns_is_refused_without_its_values(
    after: dict[str, object], message: str
) -> None:
    with pytest.raises(TransformFailed, match=message) as raised:
        bound(OnRow(lambda change: replace(change, after=after))).apply(ROWS)
    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_result_that_is_no_change_is_refused() -> None:
    with pytest.raises(TransformFailed, match="it returned str, not a Change or None"):
        bound(OnRow(lambda _change: "x")).apply(ROWS)  # type: ignore[arg-type, return-value]
