"""Transforms of an application, written with the public names alone: what is derived of them, and what is refused."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from tests.support.plugins.examples import EmailDomain
from tests.support.samples.changed_rows import batch_of, bound, columns_of, customers, rows_of
from tidemark import BadTransform, Batch, BoundTransform, TableShape, Transform, TransformFailed
from tidemark.transforms.plan import TransformPlans

TABLE = customers("id", "name", "email")
ROWS = batch_of(("u", {"id": 1}, {"id": 1, "name": "Ann"}), of=TABLE, unchanged=[bytes([0b100])])
Binding = Callable[[TableShape], BoundTransform | None]


class Given(Transform):
    """Binds as a test says. NB: it does not call the constructor of the base."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding

    def bind(self, shape: TableShape) -> BoundTransform | None:
        return self._binding(shape)


def reordered(shape: TableShape) -> BoundTransform:
    """Move the column email behind a new one at the front, and drop the name."""
    fields = [pa.field("first", pa.int8()), shape.columns.field("email"), shape.columns.field("id")]

    def change(side: pa.StructArray) -> pa.StructArray:
        columns = [pa.nulls(len(side), pa.int8()), side.field("email"), side.field("id")]
        return pa.StructArray.from_arrays(columns, fields=fields, mask=side.is_null())

    return BoundTransform(shape.with_columns(fields), lambda batch: [batch.with_sides(change)])


def test_unchanged_columns_keep_their_names_where_columns_move() -> None:
    plan = bound(Given(reordered), to=TABLE)
    (found,) = plan.apply(ROWS)
    assert plan.shape.names == ("first", "email", "id")
    assert [change.unchanged for change in found] == [("email",)]
    assert rows_of(found) == [("u", {"id": 1}, {"id": 1})]


def without_name(shape: TableShape) -> BoundTransform | None:
    if "name" not in shape.names:
        return None
    fields = [field for field in shape.columns if field.name != "name"]

    def change(side: pa.StructArray) -> pa.StructArray:
        return pa.StructArray.from_arrays([side.field(field.name) for field in fields], fields=fields)

    return BoundTransform(shape.with_columns(fields), lambda batch: [batch.with_sides(change)])


@pytest.mark.parametrize("transform", [Given(without_name), EmailDomain("name")])
def test_a_column_that_is_left_out_or_declared_hidden_is_not_shown_under_a_new_name(transform: Transform) -> None:
    plans = TransformPlans([transform], columns_of)
    with pytest.raises(BadTransform, match=r"the column name of public.customers, which is masked or dropped, is now"):
        plans.check_change("shop", TABLE, customers("id", "other_name", "email"))


def test_a_column_that_is_renamed_remains_described_by_its_number() -> None:
    def renamed(shape: TableShape) -> BoundTransform:
        fields = [field.with_name("mail" if field.name == "email" else field.name) for field in shape.columns]
        numbers = {"mail" if name == "email" else name: number for name, number in shape.numbers.items()}

        def change(side: pa.StructArray) -> pa.StructArray:
            return pa.StructArray.from_arrays(side.flatten(), fields=fields, mask=side.is_null())

        return BoundTransform(shape.with_columns(fields, numbers), lambda batch: [batch.with_sides(change)])

    plan = bound(Given(renamed), to=TABLE)
    (found,) = plan.apply(ROWS)
    assert [change.unchanged for change in found] == [("mail",)]
    assert plan.columns == (*TABLE.live_columns[:2], replace(TABLE.live_columns[2], name="mail"))
    assert plan.shape.hidden == frozenset()


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        (lambda shape: shape, "Given: bind returned TableShape for public.customers, not a BoundTransform or None"),
        (
            lambda shape: BoundTransform(lambda batch: [batch], shape),  # type: ignore[arg-type]
            "Given: bind returned a BoundTransform of function and TableShape for public.customers",
        ),
        (
            lambda shape: BoundTransform(shape.with_columns(list(shape.columns)[1:]), lambda batch: [batch]),
            "Given: it returned public.customers without id, which is in the key",
        ),
        (
            lambda shape: BoundTransform(shape.with_columns([*shape.columns] * 2), lambda batch: [batch]),
            "Given: public.customers would have two columns id",
        ),
        (
            lambda shape: BoundTransform(shape.with_columns(shape.columns, {"id": 99}), lambda batch: [batch]),
            "Given: it returned a number of public.customers for id, which is no column of it",
        ),
    ],
)
def test_a_result_that_describes_no_version_of_the_table_is_refused_at_the_start(
    binding: Binding, message: str
) -> None:
    with pytest.raises(BadTransform, match=message):
        bound(Given(binding), to=TABLE)


@pytest.mark.parametrize(
    ("step", "kind"), [(lambda batch: batch, "Batch"), (lambda _batch: None, "NoneType"), (list, "list")]
)
def test_a_step_that_returns_no_batches_is_refused_by_the_name_of_its_transform(
    step: Callable[[Batch], Sequence[Batch]], kind: str
) -> None:
    with pytest.raises(
        TransformFailed, match=rf"Given: its step returned {kind} for public.customers, not a list or tuple of batches"
    ):
        bound(Given(lambda shape: BoundTransform(shape, step)), to=TABLE).apply(ROWS)


def sides(change: Callable[[pa.StructArray], pa.StructArray]) -> Callable[[Batch], Sequence[Batch]]:
    return lambda batch: [batch.with_sides(change)]


def reversed_columns(side: pa.StructArray) -> pa.StructArray:
    return pa.StructArray.from_arrays(side.flatten()[::-1], fields=[*side.type][::-1], mask=side.is_null())


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (sides(reversed_columns), "whose _before is not as declared"),
        (sides(lambda side: pa.nulls(len(side))), "whose _before is not as declared"),
        (lambda batch: [batch.with_rows(batch.arrow.drop_columns(["_after"]))], "whose _after is not as declared"),
        (lambda batch: [batch.with_rows(batch.arrow.drop_columns(["_op"]))], "whose _op is not as declared"),
        (lambda batch: [batch, batch.with_rows(batch.arrow.drop_columns(["_lsn"]))], "whose _lsn is not as declared"),
    ],
)
def test_rows_in_another_form_than_declared_reach_no_handler(
    step: Callable[[Batch], Sequence[Batch]], message: str
) -> None:
    with pytest.raises(TransformFailed, match=rf"Given: its step returned rows of public.customers {message}"):
        bound(Given(lambda shape: BoundTransform(shape, step)), to=TABLE).apply(ROWS)


def test_a_column_that_is_declared_as_dropped_and_still_there_reaches_no_handler() -> None:
    transform = Given(lambda shape: BoundTransform(shape.with_columns([*shape.columns][:2]), lambda batch: [batch]))
    with pytest.raises(TransformFailed, match=r"whose _before is not as declared"):
        bound(transform, to=TABLE).apply(ROWS)


def test_a_form_is_checked_again_where_an_earlier_batch_had_the_declared_one() -> None:
    plan = bound(Given(lambda shape: BoundTransform(shape, lambda batch: [batch])), to=TABLE)
    assert [rows_of(found) for found in plan.apply(ROWS)] == [rows_of(ROWS)]
    with pytest.raises(TransformFailed, match=r"whose _before is not as declared"):
        plan.apply(ROWS.with_sides(reversed_columns))


def test_rows_that_are_no_record_batch_are_refused() -> None:
    def as_table(batch: Batch) -> Sequence[Batch]:
        return [batch.with_rows(pa.Table.from_batches([batch.arrow]))]

    with pytest.raises(TransformFailed, match=r"Given: its step returned Table as rows of public.customers, not a Rec"):
        bound(Given(lambda shape: BoundTransform(shape, as_table)), to=TABLE).apply(ROWS)


def test_a_column_that_is_not_there_cannot_be_hidden() -> None:
    with pytest.raises(BadTransform, match=r"public.customers has no column emial that could be hidden"):
        bound(Given(lambda shape: BoundTransform(shape.with_hidden(["emial"]), lambda batch: [batch])), to=TABLE)


@pytest.mark.parametrize("tables", ["public.customers", ("public.customers",)])
def test_an_attribute_tables_may_be_one_pattern(tables: str | Sequence[str]) -> None:
    transform = Given(without_name)
    transform.tables = tables
    assert bound(transform, to=TABLE).shape.names == ("id", "email")
    transform.tables = "public.orders"
    assert not bound(transform, to=TABLE).steps


def test_tables_and_column_of_a_class_apply_unless_its_constructor_gets_others() -> None:
    class WithoutName(Transform):
        tables = ("public.orders",)
        has_column = "email"

        def bind(self, shape: TableShape) -> BoundTransform | None:
            return without_name(shape)

    assert not bound(WithoutName(), to=TABLE).steps
    assert bound(WithoutName(tables="public.customers"), to=TABLE).steps
    assert not bound(WithoutName(tables="public.customers", has_column="phone"), to=TABLE).steps
    assert not bound(WithoutName(tables="public.customers"), to=customers("id", "name")).steps
