"""The replica alone, fed in pieces: its rows after each piece, and the cost of each piece."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.lakes.fed_replica import APP, AT, XID, ScriptedReplica, boundary, schema_event, unkeyed_table
from tests.support.lakes.scripted_table import DATABASE, TYPES, ScriptedTable, Value, column
from tidemark.decode.types.registry import REGCLASS
from tidemark.model.change import SchemaEffect, Truncation
from tidemark.model.lsn import Oid
from tidemark.model.position import NO_SEQUENCE
from tidemark.model.relation import Column, EnumLabel, Relation, ReplicaIdentity, TypeDescription, TypeKind
from tidemark.pipeline.delta_log.applied import NOTHING
from tidemark.pipeline.lake.row_identity import row_identity
from tidemark.pipeline.lake.tables.lake_table import LakeTable


@pytest.fixture
def fed(tmp_path: Path) -> ScriptedReplica:
    """Return a table with three rows, which its replica has."""
    made = ScriptedReplica(tmp_path, ScriptedTable())
    for key in (1, 2, 3):
        made.table.insert({1: key, 2: "first", 3: "long" * key})
    made.feed()
    made.table.commit()
    return made


def change_rows(table: ScriptedTable) -> None:
    """Change rows in each way: some keep a value, some lose it, some change their key, one is deleted."""
    keys = list(table.rows)
    table.update(keys[0], {2: "kept"}, unchanged=(3,))
    table.update(keys[1], {2: "changed", 3: "short"})
    table.delete(keys[2])
    table.insert({**dict.fromkeys(table.rows[keys[1]], "new"), 1: "9" if isinstance(keys[1][0], str) else 9})
    table.update(keys[0], {1: "8" if isinstance(keys[0][0], str) else 8}, unchanged=(3,))


def change_wider_rows(table: ScriptedTable) -> None:
    for key in list(table.rows):
        table.update(key, {4: "here", 5: None})


LIFE: dict[str, Callable[[ScriptedTable], None]] = {
    "change rows": change_rows,
    "add": lambda table: table.add_column("extra"),
    "add with a default": lambda table: table.add_column("more", "constant"),
    "change wider rows": change_wider_rows,
    "rename": lambda table: table.rename_column(2, "Remark"),
    "drop": lambda table: table.drop_column(4),
    "rewrite": lambda table: table.rewrite(1, "text", {key: str(key[0]) for key in table.rows}),
    "insert": lambda table: table.insert({1: "7", 2: "seven", 3: None, 5: "five"}),
    "change rows by text": change_rows,
    "rewrite again": lambda table: table.rewrite(1, "int8", {key: int(key[0] or 0) for key in table.rows}),
    "truncate": lambda table: table.truncate(),
    "insert again": lambda table: table.insert({1: 1, 2: "one", 3: "first", 5: None}),
    "copy": lambda table: table.copy(2, [{1: 5, 2: "copied", 3: None, 5: None}]),
    "insert at last": lambda table: table.insert({1: 1, 2: "one", 3: "last", 5: None}),
}


@pytest.mark.parametrize(
    "identity",
    [
        ReplicaIdentity.DEFAULT,
        ReplicaIdentity.FULL,
        pytest.param(None, id="whole rows", marks=pytest.mark.feature("P27")),
    ],
)
def test_the_replica_equals_its_table_after_each_step(tmp_path: Path, identity: ReplicaIdentity | None) -> None:
    fed = ScriptedReplica(tmp_path, ScriptedTable(identity=identity or ReplicaIdentity.FULL))
    if identity is None:
        fed.table.relation = replace(fed.table.relation, primary_key=())
    for key in (1, 2, 3):
        fed.table.insert({1: key, 2: "first", 3: "long" * key})
    for what, act in LIFE.items():
        if identity is None and what == "change rows by text":
            continue  # it inserts a row with the key of another one
        act(fed.table)
        fed.feed()
        assert fed.rows == fed.table.expected(), what
        fed.table.commit()
    assert not unkeyed_table(fed).exists, "it had a key at all times"


def test_new_rows_are_appended_in_one_commit_and_others_merged_in_one(fed: ScriptedReplica) -> None:
    version = fed.delta.version()
    fed.table.insert({1: 4, 2: "new", 3: None})
    assert fed.feed().version == version + 1
    assert len(fed.delta.file_uris()) == 2
    fed.assert_equal()
    fed.table.update((4,), {2: "newer"})
    fed.table.delete((1,))
    assert fed.feed().version == version + 2
    fed.assert_equal()


def test_a_column_of_nulls_is_added_without_writing_rows_again(fed: ScriptedReplica) -> None:
    files = fed.delta.file_uris()
    fed.table.add_column("extra")
    fed.feed()
    assert fed.delta.file_uris() == files
    fed.assert_equal()


def test_an_incomplete_row_with_a_changed_key_is_not_inserted(fed: ScriptedReplica) -> None:
    there = fed.rows
    fed.table.rows[4,] = {1: 4, 2: "never copied", 3: "long"}
    fed.table.update((4,), {1: 5}, unchanged=(3,))
    fed.feed()
    assert fed.rows == there


def test_a_table_without_columns_has_no_replica(tmp_path: Path) -> None:
    fed = ScriptedReplica(tmp_path, ScriptedTable(key=(), identity=ReplicaIdentity.NOTHING))
    fed.table.relation = replace(fed.table.relation, columns=())
    fed.table.insert({})
    fed.feed()
    assert not list(tmp_path.iterdir())


# Keys that are equal, but not bit by bit


def by_key(fed: ScriptedReplica, kind: Column, key: Value) -> None:
    fed.table.relation = replace(fed.table.relation, columns=(kind, *fed.table.relation.columns[1:]))
    fed.table.insert({1: key, 2: "first", 3: "long"})
    fed.table.commit()
    fed.feed()


@pytest.mark.parametrize(("key", "equal"), [(0.0, -0.0), (-0.0, 0.0), (math.nan, math.nan)], ids=repr)
def test_floats_that_are_equal_in_postgresql_are_one_row(tmp_path: Path, key: float, equal: float) -> None:
    fed = ScriptedReplica(tmp_path, ScriptedTable())
    by_key(fed, column(1, "id", "float8"), key)
    fed.table.update((key,), {1: equal, 2: "second"})
    fed.feed()
    assert repr(fed.rows) == repr(fed.table.expected())


def test_a_numeric_that_is_nan_is_null_in_the_lake_and_one_row(tmp_path: Path) -> None:
    fed = ScriptedReplica(tmp_path, ScriptedTable())
    by_key(fed, replace(column(1, "id", "numeric"), typmod=(10 << 16 | 2) + 4), None)
    fed.table.update((None,), {2: "second"})
    fed.feed()
    fed.assert_equal()


# First copies


def test_a_copy_replaces_all_rows_at_its_begin_and_is_recorded_as_unfinished_until_its_end(
    fed: ScriptedReplica,
) -> None:
    fed.table.copy(2, [{1: 7, 2: "copied", 3: None}], complete=False)
    applied = fed.feed().applied
    assert (applied.generation, applied.copy_sequence > NO_SEQUENCE) == (2, True)
    assert [row["id"] for row in fed.rows] == [7]
    fed.table.commit()
    fed.table.copy(3, [{1: 8, 2: "copied", 3: None}])
    applied = fed.feed().applied
    assert (applied.generation, applied.copy_sequence) == (3, NO_SEQUENCE)
    fed.assert_equal()


def test_a_copy_without_rows_is_recorded_as_begun(tmp_path: Path) -> None:
    fed = ScriptedReplica(tmp_path, ScriptedTable())
    fed.table.copy(1, [], complete=False)
    assert fed.feed().applied.generation == 1
    assert fed.rows == []


# Rewrites


def begin_rewrite(fed: ScriptedReplica) -> None:
    columns = (column(1, "id", "text"), *fed.table.relation.columns[1:])
    fed.table.alter(columns, SchemaEffect.REWRITE)
    boundary(fed, begin=True)


def test_rewritten_rows_are_visible_only_at_the_end_and_staged_once_despite_repeats(fed: ScriptedReplica) -> None:
    before, applied_count = fed.rows, len(fed.table.delivered())
    begin_rewrite(fed)
    fed.table.rows.clear()
    for key in ("1", "2"):
        fed.table.insert({1: key, 2: "rewritten", 3: None}, "r")
    fed.apply()
    aside = fed.replica.staging_table()
    assert (fed.rows, aside.scan().read_all().num_rows) == (before, 2)
    fed.table.insert({1: "3", 2: "rewritten", 3: None}, "r")  # in the same batch as the rows before it
    fed.replica.apply(fed.table.delivered()[applied_count:])
    version = fed.replica.staging_table().version
    assert version == aside.version + 1
    fed.replica.apply(fed.table.delivered()[applied_count:])
    assert fed.replica.staging_table().version == version
    assert fed.rows == before
    boundary(fed, begin=False)
    fed.feed()
    fed.assert_equal()
    assert fed.replica.staging_table().scan().read_all().num_rows == 0


def test_a_rewrite_creates_the_replica_of_a_table_without_rows(tmp_path: Path) -> None:
    fed = ScriptedReplica(tmp_path, ScriptedTable())
    begin_rewrite(fed)
    fed.table.insert({1: "1", 2: "rewritten", 3: None}, "r")
    boundary(fed, begin=False)
    fed.feed()
    fed.assert_equal()


# Tables that are created and dropped


def test_a_created_table_is_emptied_unless_it_has_rows_or_its_rows_are_unknown(fed: ScriptedReplica) -> None:
    there, relation = fed.rows, fed.table.relation
    schema_event(fed, None, relation, brings_rows=True)
    fed.feed()
    assert fed.rows == there
    schema_event(fed, None, relation, SchemaEffect.UNSEEN)
    fed.feed()
    assert fed.rows == there
    schema_event(fed, None, relation)
    fed.feed()
    assert fed.rows == []


def test_the_replica_of_a_dropped_table_is_unchanged(fed: ScriptedReplica) -> None:
    there = fed.rows
    schema_event(fed, fed.table.relation, None)
    fed.feed()
    assert fed.rows == there


# Tables without a key


def unkeyed(root: Path) -> ScriptedReplica:
    fed = ScriptedReplica(root, ScriptedTable(key=(), identity=ReplicaIdentity.NOTHING))
    for note in ("a", "b"):
        fed.table.insert({1: 1 if note == "a" else 2, 2: note, 3: None})
        fed.table.commit()
        fed.feed()
    return fed


def set_key(fed: ScriptedReplica, *, key: bool) -> None:
    """Add a key to the table, or remove it."""
    fed.table.cut()
    identity, numbers = (ReplicaIdentity.DEFAULT, (1,)) if key else (ReplicaIdentity.NOTHING, ())
    before = fed.table.relation
    fed.table.key, fed.table.identity = numbers, identity
    fed.table.relation = replace(before, replica_identity=identity, identity_columns=numbers, primary_key=numbers)
    schema_event(fed, before, fed.table.relation)


def test_rows_of_a_table_without_a_key_are_collected_once_and_become_the_replica_with_the_key(tmp_path: Path) -> None:
    fed = unkeyed(tmp_path)
    assert not fed.exists
    assert unkeyed_table(fed).scan().read_all().num_rows == 2
    set_key(fed, key=True)
    fed.feed()
    assert [row["note"] for row in fed.rows] == ["a", "b"]
    assert unkeyed_table(fed).scan().read_all().num_rows == 0
    assert unkeyed_table(fed).applied == NOTHING
    fed.table.rows = {(1,): {1: 1, 2: "a", 3: None}, (2,): {1: 2, 2: "b", 3: None}}
    fed.table.update((1,), {2: "c"})
    fed.feed()
    fed.assert_equal()


def test_a_table_without_rows_has_a_replica_once_it_has_a_key(tmp_path: Path) -> None:
    fed = ScriptedReplica(tmp_path, ScriptedTable(key=(), identity=ReplicaIdentity.NOTHING))
    schema_event(fed, fed.table.relation, fed.table.relation, SchemaEffect.REWRITE)
    set_key(fed, key=True)
    fed.table.insert({1: 1, 2: "first", 3: None})
    fed.feed()
    fed.assert_equal()


def test_a_replica_that_was_empty_when_the_pipeline_was_killed_is_filled(tmp_path: Path) -> None:
    fed = unkeyed(tmp_path)
    LakeTable(fed.uri, APP).create(unkeyed_table(fed).schema, NOTHING)
    set_key(fed, key=True)
    fed.feed()
    assert [row["note"] for row in fed.rows] == ["a", "b"]


def test_a_change_without_a_key_blocks_the_table_until_all_rows_are_copied(tmp_path: Path) -> None:
    fed = unkeyed(tmp_path)
    fed.table.rows = {(): {1: 2, 2: "b", 3: None}}
    fed.table.update((), {2: "which?"})
    assert fed.feed().applied.blocked
    fed.table.insert({1: 3, 2: "late", 3: None})
    assert fed.feed().applied.blocked
    assert unkeyed_table(fed).scan().read_all().num_rows == 0
    set_key(fed, key=True)
    fed.table.insert({1: 4, 2: "later", 3: None})
    assert fed.feed().applied.blocked
    assert not fed.exists
    fed.table.commit()
    fed.table.copy(2, [{1: 1, 2: "copied", 3: None}, {1: 2, 2: "copied", 3: None}])
    assert not fed.feed().applied.blocked
    fed.table.update((1,), {2: "changed"})
    fed.feed()
    fed.assert_equal()


def test_a_key_that_was_replaced_by_another_loses_nothing(fed: ScriptedReplica) -> None:
    set_key(fed, key=False)
    set_key(fed, key=True)
    fed.table.update((1,), {2: "behind it"})
    assert not fed.feed().applied.blocked
    fed.assert_equal()


def test_a_replica_whose_table_lost_its_key_is_unchanged(fed: ScriptedReplica) -> None:
    there, columns = fed.rows, fed.delta.schema().to_arrow()
    set_key(fed, key=False)
    assert not fed.feed().applied.blocked
    fed.happens(Truncation(fed.table.next_position(), AT, DATABASE, XID, fed.table.relation, False, False))
    left = fed.feed()
    assert left.applied.blocked
    fed.table.add_column("extra")
    fed.table.insert({1: 9, 2: "unseen", 3: None, 4: None})
    last = fed.feed()
    assert (last.version, last.applied.position) == (left.version, left.applied.position), "recorded once"
    assert (fed.rows, fed.delta.schema().to_arrow()) == (there, columns)


def test_a_replica_whose_table_lost_its_key_records_the_position_of_the_last_change(fed: ScriptedReplica) -> None:
    set_key(fed, key=False)
    fed.table.insert({1: 9, 2: "unseen", 3: None})
    fed.table.insert({1: 9, 2: "unseen", 3: None})
    left = fed.feed()
    assert left.applied.position.ordinal == fed.table.ordinal
    assert len(fed.rows) == 3


def test_a_truncate_unblocks_a_table_without_a_key(tmp_path: Path) -> None:
    fed = unkeyed(tmp_path)
    fed.table.rows = {(): {1: 2, 2: "b", 3: None}}
    fed.table.update((), {2: "which?"})
    fed.table.truncate()
    assert not fed.feed().applied.blocked
    fed.table.insert({1: 3, 2: "new", 3: None})
    fed.feed()
    assert [row["note"] for row in unkeyed_table(fed).scan().read_all().to_pylist()] == ["new"]


def test_a_truncate_creates_the_replica_of_a_blocked_table_that_now_has_a_key(tmp_path: Path) -> None:
    fed = unkeyed(tmp_path)
    fed.table.rows = {(): {1: 2, 2: "b", 3: None}}
    fed.table.update((), {2: "which?"})
    set_key(fed, key=True)
    fed.feed()
    assert not fed.exists
    fed.table.truncate()
    fed.feed()
    assert fed.rows == []


# Tables without a key whose old rows are complete


def whole_rows(root: Path, notes: str = "aab") -> ScriptedReplica:
    """Return a table with REPLICA IDENTITY FULL and rows that its replica has; the oracle tells equal rows apart."""
    fed = ScriptedReplica(root, ScriptedTable(key=(0,), identity=ReplicaIdentity.FULL))
    fed.table.relation = replace(fed.table.relation, primary_key=())
    for number, note in enumerate(notes):
        fed.table.insert({0: number, 1: 1, 2: note, 3: None})
    fed.feed()
    fed.table.commit()
    return fed


@pytest.mark.feature("P27")
def test_one_of_two_equal_rows_is_deleted_and_one_updated(tmp_path: Path) -> None:
    fed = whole_rows(tmp_path, "aaab")
    fed.table.delete((1,))
    fed.table.update((2,), {2: "c"})
    version = fed.delta.version()
    assert fed.feed().version == version + 1
    assert notes(fed) == ["a", "b", "c"]


@pytest.mark.feature("P27")
def test_a_merge_by_whole_rows_writes_only_the_file_with_the_row_again(tmp_path: Path) -> None:
    fed = whole_rows(tmp_path, "a")
    fed.table.insert({0: 9, 1: 9, 2: "other", 3: None})
    fed.feed()
    (first, second) = fed.delta.file_uris()
    fed.table.delete((9,))
    fed.feed()
    assert set(fed.delta.file_uris()) in ({first}, {second})
    assert notes(fed) == ["a"]


@pytest.mark.feature("P27")
def test_an_update_to_an_equal_row_adds_a_row_that_the_replica_lacks_and_keeps_one_that_it_has(tmp_path: Path) -> None:
    fed = whole_rows(tmp_path)
    fed.table.rows[(5,)] = {0: 5, 1: 5, 2: "never copied", 3: None}
    fed.table.update((5,), {})
    fed.table.update((0,), {})
    fed.feed()
    assert notes(fed) == ["a", "a", "b", "never copied"]
    files = fed.delta.file_uris()
    fed.table.update((5,), {})
    fed.feed()
    assert fed.delta.file_uris() == files


@pytest.mark.feature("P27")
def test_rows_that_were_collected_without_a_key_become_the_replica_with_full_identity(tmp_path: Path) -> None:
    fed = unkeyed(tmp_path)
    fed.table.identity = ReplicaIdentity.FULL
    before, fed.table.relation = fed.table.relation, replace(fed.table.relation, replica_identity=ReplicaIdentity.FULL)
    schema_event(fed, before, fed.table.relation)
    fed.table.rows = {(): {1: 1, 2: "a", 3: None}}
    fed.table.delete(())
    assert not fed.feed().applied.blocked
    assert notes(fed) == ["b"]


@pytest.mark.feature("P27")
def test_a_change_without_its_whole_old_row_ends_the_updates_of_the_replica(tmp_path: Path) -> None:
    fed = whole_rows(tmp_path)
    fed.table.identity = ReplicaIdentity.DEFAULT  # of the partition that the row is in
    fed.table.key = (1,)
    fed.table.rows = {(1,): {0: 0, 1: 1, 2: "a", 3: None}}
    fed.table.delete((1,))
    assert fed.feed().applied.blocked
    assert notes(fed) == ["a", "a", "b"]


@pytest.mark.feature("P27")
@pytest.mark.parametrize("type_name", ["regclass", "raw"])
def test_values_that_a_copy_has_in_another_form_do_not_identify_a_row(tmp_path: Path, type_name: str) -> None:
    fed = ScriptedReplica(tmp_path, ScriptedTable(key=(0,), identity=ReplicaIdentity.FULL))
    known = column(1, "id", "int4")
    assert known.type is not None
    oid = REGCLASS if type_name == "regclass" else Oid(1 << 20)
    kind = replace(known.type, oid=oid, name=type_name)
    columns = (replace(known, type=kind), *fed.table.relation.columns[1:])
    relation = replace(fed.table.relation, columns=columns, primary_key=())
    assert row_identity(relation) is None


# Values that print differently after DDL of their type


def enum(label: str) -> Column:
    labels = (EnumLabel(Oid(1), 1, label), EnumLabel(Oid(2), 2, "other"))
    *_, align = TYPES["int4"]
    kind = TypeDescription(Oid(16500), "public", "mood", "mood", TypeKind.ENUM, 4, True, align, labels=labels)
    return Column(2, "note", kind, -1, 4, True, align)


def moody(root: Path) -> tuple[ScriptedReplica, Relation, Relation]:
    """Return a table with rows whose enum has a label that is renamed later, and both versions of it."""
    fed = ScriptedReplica(root, ScriptedTable())
    first, _, last = fed.table.relation.columns
    was, now = (replace(fed.table.relation, columns=(first, enum(label), last)) for label in ("old", "new"))
    fed.table.relation = was
    fed.table.insert({1: 1, 2: "old", 3: None})
    fed.table.insert({1: 2, 2: "other", 3: None})
    fed.feed()
    fed.table.commit()
    return fed, was, now


def notes(fed: ScriptedReplica) -> list[Value]:
    return [row["note"] for row in fed.rows]


def test_a_label_is_renamed_in_existing_rows_and_in_rows_decoded_with_its_old_name(tmp_path: Path) -> None:
    fed, was, now = moody(tmp_path)
    schema_event(fed, was, now)
    fed.feed()
    assert notes(fed) == ["new", "other"]
    fed.table.insert({1: 3, 2: "old", 3: None})
    fed.feed()
    assert notes(fed) == ["new", "other", "new"]


def test_events_with_the_old_form_of_a_type_do_not_undo_the_rename(tmp_path: Path) -> None:
    fed, was, now = moody(tmp_path)
    schema_event(fed, was, now)
    fed.happens(Truncation(fed.table.next_position(), AT, DATABASE, XID, was, False, False))
    fed.table.insert({1: 3, 2: "old", 3: None})
    fed.feed()
    assert notes(fed) == ["new"]


def test_rows_after_a_copy_have_the_labels_of_the_copied_rows(tmp_path: Path) -> None:
    fed, was, now = moody(tmp_path)
    fed.table.relation = now
    fed.table.copy(2, [{1: 1, 2: "new", 3: None}])
    fed.table.commit()
    fed.table.relation = was
    fed.table.insert({1: 3, 2: "old", 3: None})
    fed.feed()
    assert notes(fed) == ["new", "new"]


def test_a_label_is_renamed_and_a_column_added_at_once(tmp_path: Path) -> None:
    fed, was, now = moody(tmp_path)
    schema_event(fed, was, replace(now, columns=(*now.columns, column(4, "extra", "text"))))
    fed.feed()
    assert notes(fed) == ["new", "other"]
    assert fed.delta.schema().to_arrow().names == ["id", "note", "big", "extra"]
