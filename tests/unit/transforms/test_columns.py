"""Drop, Rename and Cast: columns, bitmaps of unchanged ones, the key; refusals."""

import pyarrow as pa
import pytest

from tests.support.samples.changed_rows import batch_of, bound, customers, rows_of
from tidemark import Cast, Drop, Rename, Transform
from tidemark.transforms.transform import BadTransform, TransformFailed

ANN = {"id": 1, "name": "Ann", "email": "ann@x.org", "score": 2.0}


def test_dropped_columns_are_absent_from_both_sides() -> None:
    (found,) = bound(Drop("customers.email", "customers.s*")).apply(batch_of(("u", ANN, ANN)))
    assert [field.name for field in found.arrow.schema.field("_after").type] == [
        "id",
        "name",
        "total",
        "born",
        "tags",
        "vip",
    ]
    assert found.arrow.schema.field("_before").type == found.arrow.schema.field("_after").type
    assert rows_of(found) == [("u", {"id": 1, "name": "Ann"}, {"id": 1, "name": "Ann"})]


def test_unchanged_columns_keep_their_names_when_others_are_dropped() -> None:
    rows = batch_of(("u", None, {"id": 1}), ("u", None, {"id": 2}), unchanged=[bytes([0b10110]), None])
    assert [change.unchanged for change in rows] == [("name", "email", "born"), ()]
    (found,) = bound(Drop("customers.name"), Rename("customers.born", "birthday")).apply(rows)
    assert [change.unchanged for change in found] == [("email", "birthday"), ()]
    (found,) = bound(Drop("customers.name", "customers.email", "customers.born")).apply(rows)
    assert found.arrow.column("_unchanged").to_pylist() == [None, None]


def test_a_renamed_column_of_the_key_remains_in_the_key() -> None:
    (found,) = bound(Rename("customers.id", "number")).apply(batch_of(("i", None, ANN), ("d", {"id": 7}, None)))
    assert found.key == ("number",)
    assert rows_of(found)[1] == ("d", {"number": 7}, None)


def test_a_cast_changes_type_and_values() -> None:
    plan = bound(Cast("customers.id", "string"), Cast("customers.score", pa.int32()))
    (found,) = plan.apply(batch_of(("i", None, ANN)))
    assert rows_of(found) == [("i", None, {"id": "1", "name": "Ann", "email": "ann@x.org", "score": 2})]
    assert found.arrow.schema.field("_after").type.field("score").type == pa.int32()


def test_a_value_that_cannot_be_cast_is_not_shown() -> None:
    with pytest.raises(TransformFailed, match="has a value in name that is not a valid int64") as raised:
        bound(Cast("customers.name", "int64")).apply(batch_of(("i", None, ANN)))
    assert "Ann" not in str(raised.value)
    assert raised.value.__suppress_context__


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (Drop("customers.id"), "id of public.customers is in the key: without it"),
        (Drop("customers.mail"), "has no column mail"),
        (Rename("customers.mail", "email"), "has no column mail"),
        (Rename("customers.name", "email"), "public.customers has a column email already"),
        (Rename("customers.*e", "x"), "name, score, since of public.customers would have one name"),
        (
            Cast("customers.tags", "int64"),
            "tags of public.customers has the type list<.*>, which cannot be cast to int64",
        ),
        (Cast("customers.id", "int32"), "is in the key: two values could become one"),
    ],
)
def test_a_change_of_columns_that_does_not_fit_is_refused(transform: Transform, message: str) -> None:
    with pytest.raises(BadTransform, match=message):
        bound(transform)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(BadTransform, match="no such type"):
        Cast("a.b", "number")
    with pytest.raises(BadTransform, match="new name is empty"):
        Rename("a.b", "")
    with pytest.raises(BadTransform, match="needs columns"):
        Drop()


def test_all_columns_but_the_key_can_be_dropped() -> None:
    (found,) = bound(Drop("*.*.[!i]*"), to=customers("id", "name")).apply(
        batch_of(("d", ANN, None), of=customers("id", "name"))
    )
    assert rows_of(found) == [("d", {"id": 1}, None)]
