"""Plans of versions of a table: the order of transforms, and versions that would show what is hidden."""

from dataclasses import replace

import pyarrow as pa
import pytest

from tests.support.samples.changed_rows import batch_of, bound, columns_of, customers, rows_of
from tidemark import BadTransform, Drop, Filter, Mask, OnBatch, Rename
from tidemark.transforms.plan import TransformPlans

OLD = customers("id", "email")


def test_transforms_see_the_table_as_those_before_them_left_it() -> None:
    plan = bound(Rename("customers.email", "mail"), Mask("customers.mail", constant="x"), Filter("mail = 'x'"), to=OLD)
    (found,) = plan.apply(batch_of(("i", None, {"id": 1, "email": "a"}), ("i", None, {"id": 2}), of=OLD))
    assert rows_of(found) == [("i", None, {"id": 1, "mail": "x"})]


def test_a_version_is_bound_once() -> None:
    bindings: list[int] = []

    def count(rows: pa.RecordBatch) -> pa.RecordBatch:
        bindings.append(rows.num_rows)
        return rows

    plans = TransformPlans([OnBatch(count)], columns_of)
    assert plans.plan("shop", OLD) is plans.plan("shop", replace(OLD))
    assert bindings == [0]


@pytest.mark.parametrize("transform", [Mask("public.*.email"), Drop("public.*.email")])
def test_a_hidden_column_is_not_shown_under_a_new_name(transform: Mask | Drop) -> None:
    plans = TransformPlans([transform], columns_of)
    with pytest.raises(
        BadTransform, match=r"the column email of public.customers, which is masked or dropped, is now mail"
    ):
        plans.check_change("shop", OLD, customers("id", "mail"))
    plans.check_change("shop", OLD, customers("id", "other", numbers=(1, 3)))
    plans.check_change("shop", OLD, customers("id", "email", "more"))


def test_a_column_with_both_names_in_the_transform_can_be_renamed() -> None:
    plans = TransformPlans([Mask("public.customers.email|mail")], columns_of)
    plans.check_change("shop", OLD, customers("id", "mail"))
    plans = TransformPlans([Mask("public.customers.mail")], columns_of)
    plans.check_change("shop", OLD, customers("id", "mail"))  # corrected after the rename


def test_a_missing_column_after_a_change_is_refused_by_its_name() -> None:
    plans = TransformPlans([Mask("public.customers.email")], columns_of)
    with pytest.raises(BadTransform, match=r"public.customers has no column email; its columns are id, mail") as raised:
        plans.check_change("shop", OLD, customers("id", "mail"))
    assert '"public.customers.email|new_name"' in raised.value.hint


def test_patterns_that_no_version_has_are_known() -> None:
    transforms = [
        Mask("public.customers.email", "public.custmers.email"),
        Mask("public.*.emial"),
        Drop("customers.notes", has_column="phone"),
        Filter("id > 1", tables=["public.customers", "public.ordes"]),
        Filter("id > 1", has_column="id"),
    ]
    plans = TransformPlans(transforms, columns_of)
    assert plans.unmatched() == []
    plans.plan("shop", customers("id", "email", "notes"))
    patterns = ["public.custmers.email", "public.*.emial", "customers.notes", "public.ordes"]
    assert [pattern for _, pattern in plans.unmatched()] == patterns
    assert [str(transform) for transform, _ in plans.unmatched()][1] == "Mask('public.*.emial')"
    plans.plan("shop", customers("id", "email", "notes", "phone"))
    assert "customers.notes" not in [pattern for _, pattern in plans.unmatched()]
