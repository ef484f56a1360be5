"""Transforms on groups of the stream, for targets that take rows in the form of tables: the outbox."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from tests.support.forged.groups import DATABASE, batch, position, relation
from tests.support.plugins.bad_plugins import leaking
from tidemark import Cast, Drop, Filter, Mask, OnBatch, OnRow, Rename, Route, Secret, Transform
from tidemark.decode.types.registry import arrow_struct
from tidemark.model.change import (
    ChangeBatch,
    ChangeGroup,
    CopyBoundary,
    GroupItem,
    LogicalMessage,
    PartitionChange,
    PartitionEvent,
    RewriteBoundary,
    SchemaChange,
    SchemaEffect,
    SchemaEvent,
    Truncation,
)
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import Lsn, Oid, TimelineId, Xid
from tidemark.model.mapping import TypeMapping
from tidemark.model.position import Epoch, Pointer
from tidemark.model.relation import KnownDatabase, Relation
from tidemark.runtime.plugins.group_transforms import GroupTransforms
from tidemark.transforms.transform import BadTransform, BoundTransform, TableShape, TransformFailed

EPOCH = Epoch(TimelineId(1), 1)
HASHED = Mask("public.account.note", key=Secret(b"0123456789abcdef"))
NUMBERED = Cast("public.account.note", "int64")


def transforms_of(*transforms: Transform) -> GroupTransforms:
    return GroupTransforms(transforms, TypeMapping(), EPOCH, {DATABASE: "shop"})


def group_of(*items: GroupItem) -> ChangeGroup:
    rows = sum(item.rows.num_rows for item in items if isinstance(item, ChangeBatch))
    return ChangeGroup(position(100), Pointer(position(100, 9), Lsn(90)), items, (), rows, 64)


def altered(before: Relation | None, after: Relation | None) -> SchemaEvent:
    return SchemaEvent(
        position(100), Lsn(99), DATABASE, Xid(700), SchemaChange.ALTER, SchemaEffect.METADATA, before, after
    )


def rows_of(item: GroupItem) -> list[Mapping[str, object]]:
    assert isinstance(item, ChangeBatch)
    found: list[Mapping[str, object]] = item.rows.column("_after").to_pylist()
    return found


@pytest.mark.parametrize(
    ("transforms", "names"),
    [
        ([HASHED], ("id", "note")),
        ([Mask("public.account.note")], ("id", "note")),
        ([Drop("public.account.note")], ("id",)),
        ([Rename("public.account.note", "remark")], ("id", "remark")),
        ([Cast("public.account.id", "string")], ("id", "note")),
        ([Mask("public.account.note", constant="7"), NUMBERED], ("id", "note")),
    ],
)
def test_rows_and_the_version_of_their_table_agree_and_keep_the_key(
    transforms: Sequence[Transform], names: tuple[str, ...]
) -> None:
    (item,) = transforms_of(*transforms).apply(group_of(batch(100, [1, 2]))).items
    assert isinstance(item, ChangeBatch)
    columns = item.relation.live_columns
    assert tuple(column.name for column in columns) == names
    assert item.rows.schema.field("_after").type == arrow_struct(columns)
    assert (item.relation.identity_columns, item.relation.primary_key) == ((1,), (1,))
    assert item.relation.oid == relation().oid


def test_what_is_filtered_out_leaves_the_position_of_its_group() -> None:
    given = group_of(batch(100, [1, 2]))
    found = transforms_of(Filter("id = 2")).apply(given)
    assert [rows_of(item) for item in found.items] == [[{"id": 2, "note": "x"}]]
    assert (found.row_count, found.first, found.last) == (1, given.first, given.last)
    nothing = transforms_of(Filter("id = 3")).apply(given)
    assert (list(nothing.items), nothing.row_count, nothing.last) == ([], 0, given.last)


def test_the_events_of_a_table_have_its_transformed_version_and_no_masked_constant() -> None:
    old, new = relation(missing=b"a constant"), relation(missing=b"a constant", name="account")
    at, where = position(100), relation(missing=b"a constant")
    partition = relation("account_2026", 5, missing=b"a constant")  # no transform matches it
    events: list[GroupItem] = [
        altered(old, new),
        Truncation(at, Lsn(99), DATABASE, Xid(700), where, cascade=False, restart_identity=False),
        RewriteBoundary(at, Lsn(99), DATABASE, Xid(700), where, begin=True),
        CopyBoundary(at, DATABASE, where, 1, begin=True, snapshot=""),
        PartitionEvent(at, Lsn(99), DATABASE, Xid(700), PartitionChange.DETACH, where, partition),
    ]
    found = transforms_of(HASHED).apply(group_of(*events)).items
    event = found[0]
    assert isinstance(event, SchemaEvent)
    for version in (event.before, event.after, *(item.relation for item in found[1:] if hasattr(item, "relation"))):
        assert version is not None
        assert [column.missing for column in version.columns] == [None, None]
    assert isinstance(found[-1], PartitionEvent)
    assert found[-1].partition == relation("account_2026", 5)


def test_tables_that_no_transform_matches_and_messages_are_left_as_they_are() -> None:
    rows = batch(100, [1], of=relation("other", 5))
    message = LogicalMessage(position(100), Lsn(99), DATABASE, Xid(700), transactional=True, prefix="p", content=b"c")
    found = transforms_of(HASHED).apply(group_of(rows, message)).items
    assert found[0] is rows
    assert found[1] is message


def test_a_version_that_the_transforms_do_not_fit_is_refused_before_its_rows() -> None:
    new = replace(relation(), columns=(relation().columns[0], replace(relation().columns[1], name="remark")))
    with pytest.raises(BadTransform, match=r"public.account has no column note; its columns are id, remark"):
        transforms_of(HASHED).apply(group_of(altered(relation(), new)))
    with pytest.raises(BadTransform, match="has no column note"):
        transforms_of(HASHED).check([(DATABASE, new)], keeps_tables=True)


def test_after_the_list_was_corrected_the_former_version_shows_no_constant() -> None:
    new = replace(relation(), columns=(relation().columns[0], replace(relation().columns[1], name="remark")))
    event = altered(relation(missing=b"a constant"), new)
    (found,) = transforms_of(Mask("public.account.remark")).apply(group_of(event)).items
    assert isinstance(found, SchemaEvent)
    assert found.before == relation()


def test_a_type_that_no_table_can_have_is_refused_at_the_start() -> None:
    to_seconds = Cast("public.account.id", "string"), Cast("public.account.note", pa.large_string())
    with pytest.raises(BadTransform, match=r"note of public.account becomes large_string, a type that no column"):
        transforms_of(*to_seconds).check([(DATABASE, relation())], keeps_tables=True)
    transforms_of(*to_seconds).check([(DATABASE, relation())], keeps_tables=False)


def test_an_error_of_a_users_function_is_reported_without_the_values_of_the_row() -> None:
    with pytest.raises(TransformFailed) as raised:
        transforms_of(Filter("note <> ''"), OnRow(leaking)).apply(group_of(batch(100, [1], "secret text")))
    assert str(raised.value) == "OnRow(leaking) raised ValueError on rows of public.account"
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    assert raised.value.exit_code is ExitCode.CONSUMER_FAILED


def test_an_error_of_a_users_function_at_the_start_names_the_table() -> None:
    def raising(rows: pa.RecordBatch) -> pa.RecordBatch:
        raise KeyError(rows.num_rows)

    with pytest.raises(TransformFailed, match=r"^OnBatch\(.*raising\) raised KeyError on public.account$"):
        transforms_of(Filter("note <> ''"), OnBatch(raising)).check([(DATABASE, relation())], keeps_tables=True)


def test_tables_with_equal_oids_in_two_databases_are_routed_by_the_present_name_of_their_own() -> None:
    """As in a database that was created from another one as its template, and then replaced it."""
    template, copied = Oid(1), Oid(2)
    made = GroupTransforms([Route("{database}")], TypeMapping(), EPOCH, {template: "shop", copied: "new"})

    def names() -> list[str]:
        rows = batch(100, [1])
        return [made.batches(replace(rows, database=database))[0].table for database in (template, copied)]

    assert names() == ["shop", "new"]
    present = {template: KnownDatabase("old", "UTF8"), copied: KnownDatabase("shop", "UTF8")}
    made.learn(replace(group_of(), databases=present))
    assert names() == ["old", "shop"]


def test_rows_in_another_form_than_declared_do_not_reach_the_outbox() -> None:
    class Renaming(Transform):
        def bind(self, shape: TableShape) -> BoundTransform:
            return BoundTransform(shape, lambda each: [replace(each, table="elsewhere")])

    with pytest.raises(TransformFailed, match=r"rows of public.account were returned for another table"):
        transforms_of(Renaming()).apply(group_of(batch(100, [1])))
