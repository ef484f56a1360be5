"""The replica of a partitioned table, which contains the rows of its partitions."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.lakes.fed_replica import AT, XID, ScriptedReplica, boundary, schema_event, unkeyed_table
from tests.support.lakes.scripted_table import DATABASE, ScriptedTable, Value, column
from tidemark.model.change import PartitionChange, PartitionEvent, SchemaEffect, Truncation
from tidemark.model.lsn import INVALID_OID, Oid
from tidemark.model.relation import TABLEOID_NUMBER, Relation, ReplicaIdentity

LOW, HIGH = Oid(30001), Oid(30002)  # partitions


def root_of(table: ScriptedTable) -> ScriptedTable:
    tableoid = column(TABLEOID_NUMBER, "tableoid", "int8")
    table.relation = replace(table.relation, columns=(*table.relation.columns, tableoid))
    return table


def partitioned(root: Path, table: ScriptedTable) -> ScriptedReplica:
    fed = ScriptedReplica(root, root_of(table))
    for key, partition in ((1, LOW), (2, LOW), (3, HIGH)):
        fed.table.insert({1: key, 2: "12" if key > 1 else "first", 3: None, TABLEOID_NUMBER: partition})
    fed.feed()
    fed.table.commit()
    return fed


def forget(fed: ScriptedReplica, partition: Oid) -> None:
    fed.table.rows = {key: row for key, row in fed.table.rows.items() if row[TABLEOID_NUMBER] != partition}


def test_a_truncate_of_a_partition_deletes_only_its_rows(tmp_path: Path) -> None:
    fed = partitioned(tmp_path, ScriptedTable())
    fed.happens(Truncation(fed.table.next_position(), AT, DATABASE, XID, fed.table.relation, False, False, HIGH))
    forget(fed, HIGH)
    fed.feed()
    fed.assert_equal()


@pytest.mark.parametrize("change", list(PartitionChange))
def test_a_detached_or_dropped_partition_loses_its_rows(tmp_path: Path, change: PartitionChange) -> None:
    fed = partitioned(tmp_path, ScriptedTable())
    partition = replace(fed.table.relation, oid=LOW, name="low")
    fed.happens(PartitionEvent(fed.table.next_position(), AT, DATABASE, XID, change, fed.table.relation, partition))
    if change in (PartitionChange.DETACH, PartitionChange.DROP):
        forget(fed, LOW)
    fed.feed()
    fed.assert_equal()


def as_root(fed: ScriptedReplica) -> Relation:
    """Return the version of the root, which has no key, while its partitions have theirs."""
    return replace(fed.table.relation, replica_identity=ReplicaIdentity.NOTHING, identity_columns=(), primary_key=())


def truncation(fed: ScriptedReplica, relation: Relation, partition: Oid = INVALID_OID) -> Truncation:
    return Truncation(fed.table.next_position(), AT, DATABASE, XID, relation, False, False, partition)


def block(fed: ScriptedReplica) -> None:
    """Change a row that the root's version does not identify: the replica must not change."""
    there = fed.rows
    keyed, fed.table.relation = fed.table.relation, as_root(fed)
    fed.table.update((1,), {2: "which?"})
    fed.table.cut()
    fed.table.relation = keyed
    assert fed.feed().applied.blocked
    assert fed.rows == there


def test_events_of_all_rows_of_a_partition_need_no_key_of_the_root(tmp_path: Path) -> None:
    fed = partitioned(tmp_path, ScriptedTable())
    fed.happens(truncation(fed, as_root(fed), HIGH))
    forget(fed, HIGH)
    assert not fed.feed().applied.blocked
    fed.assert_equal()
    partition = replace(fed.table.relation, oid=LOW, name="low")
    at = fed.table.next_position()
    fed.happens(PartitionEvent(at, AT, DATABASE, XID, PartitionChange.DETACH, as_root(fed), partition))
    assert not fed.feed().applied.blocked
    assert fed.rows == []


def test_copied_rows_need_no_key_of_the_root_and_a_copy_unblocks_it(tmp_path: Path) -> None:
    fed = partitioned(tmp_path, ScriptedTable())
    block(fed)
    there, keyed = fed.rows, fed.table.relation
    fed.table.relation = as_root(fed)
    fed.table.insert({1: 9, 2: "unseen", 3: None, TABLEOID_NUMBER: LOW})
    assert fed.feed().applied.blocked
    assert fed.rows == there
    fed.table.commit()
    fed.table.copy(2, [{1: 5, 2: "copied", 3: None, TABLEOID_NUMBER: LOW}])
    assert not fed.feed().applied.blocked
    fed.assert_equal()
    fed.table.relation = keyed
    fed.table.update((5,), {2: "changed"})
    fed.feed()
    fed.assert_equal()


def test_a_truncate_unblocks_a_root_and_that_of_a_partition_does_not(tmp_path: Path) -> None:
    fed = partitioned(tmp_path, ScriptedTable())
    block(fed)
    there, root = fed.rows, as_root(fed)
    schema_event(fed, root, root)
    for event in (truncation(fed, root, HIGH), truncation(fed, root, LOW)):
        fed.happens(event)
        assert fed.feed().applied.blocked
        assert fed.rows == there
    fed.happens(truncation(fed, root))
    assert not fed.feed().applied.blocked
    assert fed.rows == []


def test_a_schema_event_unblocks_no_root(tmp_path: Path) -> None:
    fed = partitioned(tmp_path, ScriptedTable())
    block(fed)
    version, root = fed.delta.version(), as_root(fed)
    extra = column(4, "extra", "text")
    schema_event(fed, root, replace(root, columns=(*root.columns[:3], extra, *root.columns[3:])))
    assert fed.feed().version == version


def test_a_rewrite_of_a_partition_replaces_its_rows_and_adds_its_columns_to_others(tmp_path: Path) -> None:
    fed = partitioned(tmp_path, ScriptedTable())
    first, _, *others = fed.table.relation.columns
    fed.table.alter((first, column(2, "note", "int8"), *others), SchemaEffect.REWRITE)
    rewritten: dict[Oid, dict[Value, Value]] = {HIGH: {3: 33}, LOW: {1: 11, 2: 22}}
    for partition, notes in rewritten.items():
        boundary(fed, begin=True, partition=partition)
        for key, note in notes.items():
            fed.table.insert({**fed.table.rows[key,], 2: note}, "r")
        boundary(fed, begin=False, partition=partition)
        fed.feed()
        if partition == HIGH:
            assert {row["id"]: row["note"] for row in fed.rows} == {1: None, 2: None, 3: 33}
    fed.assert_equal()


def test_a_partition_that_is_rewritten_unblocks_no_table(tmp_path: Path) -> None:
    fed = partitioned(tmp_path, ScriptedTable(key=(), identity=ReplicaIdentity.NOTHING))
    fed.table.update((), {2: "which?"})
    assert fed.feed().applied.blocked
    boundary(fed, begin=True, partition=LOW)
    fed.table.insert({1: 1, 2: "rewritten", 3: None, TABLEOID_NUMBER: LOW}, "r")
    boundary(fed, begin=False, partition=LOW)
    assert fed.feed().applied.blocked
    assert unkeyed_table(fed).scan().read_all().num_rows == 0
