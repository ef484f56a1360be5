"""Filter, Route, ChangedFieldsOnly, Flatten and OutboxRouter: which rows remain, and under which name."""

import dataclasses

import pyarrow as pa
import pytest

from tests.support.samples.changed_rows import SampleRow, batch_of, bound, customers, rows_of, with_full_identity
from tidemark import BadTransform, ChangedFieldsOnly, Filter, Flatten, OutboxRouter, Rename, Route, TransformFailed

ROWS: list[SampleRow] = [
    ("i", None, {"id": 1, "name": "eu"}),
    ("u", {"id": 2}, {"id": 2, "name": "us"}),
    ("i", None, {"id": 3, "name": None}),
    ("d", {"id": 4}, None),
    ("c", None, {"id": 5, "name": "eu"}),
]
OUTBOX = customers("id", "aggregatetype", "aggregateid", "type", "payload")


def ids(rows: list[SampleRow]) -> list[object]:
    return [(after or before or {}).get("id") for _, before, after in rows]


def test_a_filter_keeps_what_is_true() -> None:
    (found,) = bound(Filter("name = 'eu'")).apply(batch_of(*ROWS))
    assert ids(rows_of(found)) == [1, 5]
    assert bound(Filter("id > 10")).apply(batch_of(*ROWS)) == ()
    batch = batch_of(*ROWS)
    assert bound(Filter("id > 0")).apply(batch)[0].arrow is batch.arrow


def test_a_filter_keeps_operations_that_it_does_not_test() -> None:
    (found,) = bound(Filter("name = 'eu'", operations="iuc")).apply(batch_of(*ROWS))
    assert ids(rows_of(found)) == [1, 4, 5]


def test_a_filter_applies_to_its_tables() -> None:
    assert bound(Filter("no_such = 1", tables="public.orders")).steps == ()
    assert bound(Filter("no_such = 1", has_column="no_such")).steps == ()


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(BadTransform, match="operations='ix': no operation x"):
        Filter("true", operations="ix")


def test_a_route_renames_by_a_pattern() -> None:
    (found,) = bound(Route("{database}.all_{schema}.{table}_v2", tables="public.cust*")).apply(batch_of(*ROWS))
    assert (found.table, found.relation.name) == ("shop.all_public.customers_v2", "customers")


def test_a_route_divides_rows_by_their_content() -> None:
    found = bound(Route("{table}_{value}", by="name", where="id < 5")).apply(batch_of(*ROWS))
    assert {batch.table: ids(rows_of(batch)) for batch in found} == {
        "customers_eu": [1],
        "customers_us": [2],
        "public.customers": [3, 4, 5],
    }
    unnamed: SampleRow = ("i", None, {"id": 6, "name": ""})
    found = bound(Route("{value}", by="name")).apply(batch_of(ROWS[0], unnamed))
    assert {batch.table: ids(rows_of(batch)) for batch in found} == {"eu": [1], "public.customers": [6]}
    found = bound(Route("deleted", operations="d")).apply(batch_of(*ROWS))
    assert [(batch.table, ids(rows_of(batch))) for batch in found] == [
        ("public.customers", [1, 2, 3, 5]),
        ("deleted", [4]),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("{no}", None), "and no others"), (("{value}", None), "require each other"), (("x", "id"), "require each other")],
)
def test_a_route_with_bad_arguments_is_refused(arguments: tuple[str, str | None], message: str) -> None:
    with pytest.raises(BadTransform, match=message):
        Route(arguments[0], by=arguments[1])


def test_a_route_by_a_number_is_refused() -> None:
    with pytest.raises(BadTransform, match="by: line 1, column 1: a text is needed, this is int64, in: id"):
        bound(Route("x_{value}", by="id"))


def test_an_update_keeps_only_changed_fields_and_the_key() -> None:
    table = with_full_identity(customers())
    old = {"id": 1, "name": "a", "email": "e", "tags": ["x"], "score": None}
    new = {"id": 1, "name": "b", "email": "e", "tags": ["x"], "score": None}
    rows = [("u", old, new), ("u", old, old), ("i", None, new), ("u", None, new), ("d", old, None)]
    (found,) = bound(ChangedFieldsOnly(), to=table).apply(batch_of(*rows, of=table))
    afters = [after for _, _, after in rows_of(found)]
    assert afters[:2] == [{"id": 1, "name": "b"}, {"id": 1}]
    assert afters[2:] == [{"id": 1, "name": "b", "email": "e", "tags": ["x"]}] * 2 + [None]
    first, second, *others = found
    assert "name" not in first.unchanged
    assert {"email", "tags", "score", "vip"} <= {*first.unchanged}
    assert "name" in second.unchanged
    assert all(change.unchanged == () for change in others)
    (found,) = bound(ChangedFieldsOnly(leave_out_equal=True), to=table).apply(batch_of(*rows, of=table))
    assert [op for op, _, _ in rows_of(found)] == ["u", "i", "u", "d"]
    assert bound(ChangedFieldsOnly(leave_out_equal=True), to=table).apply(batch_of(rows[1], of=table)) == ()


@pytest.mark.parametrize("deletes", ["mark", "drop"])
def test_unchanged_columns_keep_their_names_in_flat_rows(deletes: str) -> None:
    rows = batch_of(("u", None, {"id": 1, "name": "a"}), unchanged=[bytes([0b100])])
    (found,) = bound(Flatten(deletes=deletes)).apply(rows)
    assert [change.unchanged for change in found] == [("email",)]


def test_flat_rows_have_their_columns_beside_the_metadata() -> None:
    (found,) = bound(Flatten()).apply(batch_of(*ROWS))
    assert "_after" not in found.arrow.schema.names
    assert found.arrow.column("id").to_pylist() == [1, 2, 3, 4, 5]
    assert found.arrow.column("_deleted").to_pylist() == [False, False, False, True, False]
    assert [change.after["name"] for change in found if change.after] == ["eu", "us", None, None, "eu"]
    assert found.position.ordinal == 5
    (found,) = bound(Flatten(deletes="drop")).apply(batch_of(*ROWS))
    assert found.arrow.column("id").to_pylist() == [1, 2, 3, 5]
    assert bound(Flatten(deletes="drop")).apply(batch_of(ROWS[3])) == ()


@pytest.mark.parametrize("is_full", [True, False])
def test_an_update_that_changes_the_key_is_a_delete_and_an_insert_in_flat_rows(*, is_full: bool) -> None:
    table = with_full_identity(customers()) if is_full else customers()
    old: dict[str, object] = {"id": 1, "name": "eu"} if is_full else {"id": 1}
    rows: list[SampleRow] = [
        ("u", old, {"id": 1, "name": "us"}),  # of DEFAULT: a part of the key is TOASTed
        ("u", old, {"id": 2, "name": "us"}),
        ("u", None, {"id": 2, "name": "asia"}),
        ("d", {"id": 2}, None),
    ]
    batch = batch_of(*rows, of=table, unchanged=[None, bytes([0b100]), None, None])
    (found,) = bound(Flatten(), to=table).apply(batch)
    assert rows_of(found) == [
        ("u", None, {"_deleted": False, "id": 1, "name": "us"}),
        ("d", None, {"_deleted": True, **old}),
        ("i", None, {"_deleted": False, "id": 2, "name": "us"}),
        ("u", None, {"_deleted": False, "id": 2, "name": "asia"}),
        ("d", None, {"_deleted": True, "id": 2}),
    ]
    assert [change.unchanged for change in found] == [(), (), () if is_full else ("email",), (), ()]
    assert [position.ordinal for position in found.positions()] == [1, 2, 2, 3, 4]
    (found,) = bound(Flatten(deletes="drop"), to=table).apply(batch)
    assert [op for op, _, _ in rows_of(found)] == ["u", "i", "u"]
    keyless = bound(Flatten(), to=dataclasses.replace(table, primary_key=(), identity_columns=()))
    (found,) = keyless.apply(batch)
    assert [op for op, _, _ in rows_of(found)] == ["u", "u", "u", "d"]


def test_the_insert_of_a_changed_key_has_the_fields_that_did_not_change() -> None:
    table = with_full_identity(customers())
    old: dict[str, object] = {"id": 1, "name": "a", "email": "e", "tags": ["x"]}
    rows: list[SampleRow] = [("u", old, {**old, "id": 2, "name": "b"}), ("u", old, {**old, "name": "b"})]
    (found,) = bound(ChangedFieldsOnly(), Flatten(), to=table).apply(batch_of(*rows, of=table))
    assert rows_of(found) == [
        ("d", None, {"_deleted": True, **old}),
        ("i", None, {"_deleted": False, **old, "id": 2, "name": "b"}),
        ("u", None, {"_deleted": False, "id": 1, "name": "b"}),
    ]
    assert ["email" in change.unchanged for change in found] == [False, False, True]


def test_flatten_is_refused_where_names_collide_and_before_other_transforms() -> None:
    with pytest.raises(BadTransform, match="has a column _op, which is the name of a metadata column"):
        bound(Flatten(), to=customers("id", "_op"))
    with pytest.raises(BadTransform, match=r"the rows of public.customers are flat"):
        bound(Flatten(), Rename("customers.name", "x"))
    with pytest.raises(BadTransform, match="deletes='keep': must be one of mark, drop"):
        Flatten(deletes="keep")


def test_events_of_an_outbox_table_have_the_name_of_their_kind() -> None:
    event = {"id": 1, "aggregatetype": "order", "aggregateid": "o1", "type": "Placed", "payload": "{}"}
    rows = [("i", None, event), ("i", None, {**event, "id": 2, "aggregatetype": "bill"}), ("d", {"id": 1}, None)]
    found = bound(OutboxRouter("public.customers"), to=OUTBOX).apply(batch_of(*rows, of=OUTBOX))
    assert [batch.table for batch in found] == ["outbox.event.order", "outbox.event.bill"]
    assert rows_of(found[0]) == [("i", None, {"aggregateid": "o1", "id": 1, "type": "Placed", "payload": "{}"})]
    assert found[0].key == ("aggregateid",)
    assert found[0].arrow.schema.field("_after").type.field(0) == pa.field("aggregateid", pa.string())
    assert bound(OutboxRouter("customers"), to=OUTBOX).apply(batch_of(rows[2], of=OUTBOX)) == ()


def test_an_outbox_table_that_is_updated_or_has_other_columns_is_refused() -> None:
    event = {"id": 1, "aggregatetype": "order", "aggregateid": "o1"}
    with pytest.raises(TransformFailed, match=r"a row of public.customers was updated"):
        bound(OutboxRouter("customers"), to=OUTBOX).apply(batch_of(("u", None, event), of=OUTBOX))
    with pytest.raises(BadTransform, match=r"public.customers has no column aggregatetype"):
        bound(OutboxRouter("customers"))
    with pytest.raises(BadTransform, match=r"must have {value} once"):
        OutboxRouter("customers", to="events")
