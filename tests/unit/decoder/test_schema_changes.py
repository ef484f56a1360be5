"""Schema events and rewrites: emitted before the rows that need them, and removed with a savepoint's rollback."""

from dataclasses import replace

import pytest

from tests.support.forged.forged_records import Wal, packed_row, reported
from tests.support.forged.groups import relation
from tidemark.model.change import RewriteBoundary, SchemaChange, SchemaEffect, SchemaEvent
from tidemark.model.lsn import Oid
from tidemark.model.relation import Relation

ACCOUNT, HEAP = 16385, 16400
RENAMED = relation("konto")


def brief(stream: Wal, number: int = 0) -> list[str]:
    """Return rows as text, events as a word or two."""
    lines = []
    for item in reported(stream.committed[number]):
        if isinstance(item, str):
            lines.append(item)
        elif isinstance(item, SchemaEvent):
            after = item.after.name if item.after is not None else "-"
            lines.append(f"{item.change.value} {item.effect.value} {after}")
        else:
            assert isinstance(item, RewriteBoundary)
            lines.append("begin" if item.begin else "end")
    return lines


def transient(target: Relation) -> Relation:
    return replace(target, oid=Oid(HEAP), name="pg_temp_16385", rewrite_of=target.oid)


def test_a_changed_description_is_reported_before_the_next_row_and_otherwise_at_the_commit() -> None:
    stream = Wal(relation())
    stream.insert(701, ACCOUNT, packed_row(1))
    stream.change_catalog(701, ACCOUNT, RENAMED)
    stream.insert(701, ACCOUNT, packed_row(2))
    stream.change_catalog(701, 16390, relation("new", 16390))
    stream.commit(701)
    assert brief(stream) == ["i account 1/-", "alter metadata konto", "i konto 2/-", "create metadata new"]


def test_a_table_made_and_dropped_between_two_rows_is_not_reported() -> None:
    stream = Wal(relation())
    stream.change_catalog(701, 16390, relation("new", 16390))
    stream.change_catalog(701, 16390, None)
    stream.insert(701, ACCOUNT, packed_row(1))
    stream.commit(701)
    assert brief(stream) == ["i account 1/-"]


def test_a_dropped_table_is_reported_with_its_last_version() -> None:
    stream = Wal(relation())
    stream.change_catalog(701, ACCOUNT, None)
    stream.commit(701)
    (event,) = reported(stream.committed[0])
    assert isinstance(event, SchemaEvent)
    assert (event.change, event.before, event.after) == (SchemaChange.DROP, relation(), None)


def test_a_column_that_reads_as_a_constant_in_old_rows_has_that_effect() -> None:
    stream = Wal(replace(relation(), columns=relation().columns[:1]))
    stream.change_catalog(701, ACCOUNT, relation(missing=b"array"))
    stream.commit(701)
    assert brief(stream) == ["alter constant account"]


def test_ddl_that_only_changes_storage_is_not_an_event() -> None:
    stream = Wal(relation(missing=b"array"))
    stream.change_catalog(701, ACCOUNT, replace(relation(), toast_oid=Oid(5)))
    stream.change_catalog(701, 16390, replace(relation("temporary", 16390), persistence="t"))
    stream.change_catalog(701, 16391, replace(relation("view", 16391), kind="v"))
    stream.commit(701)
    assert stream.out == []


def test_a_rolled_back_savepoint_removes_its_events_and_keeps_earlier_ones() -> None:
    stream = Wal(relation())
    stream.change_catalog(701, 16390, relation("before", 16390))
    stream.change_catalog(702, ACCOUNT, RENAMED, top=701)
    stream.insert(702, ACCOUNT, packed_row(1))
    stream.abort(702)
    stream.insert(701, ACCOUNT, packed_row(2))
    stream.commit(701)
    assert brief(stream) == ["create metadata before", "i account 2/-"]


def test_a_rolled_back_savepoints_row_does_not_remove_an_event_of_its_parent() -> None:
    stream = Wal(relation())
    stream.change_catalog(701, ACCOUNT, RENAMED)
    stream.insert(702, ACCOUNT, packed_row(1), top=701)
    stream.abort(702)
    stream.commit(701)
    assert brief(stream) == ["alter metadata konto"]


def test_rewritten_rows_are_between_boundaries_after_an_event_that_announces_them() -> None:
    stream = Wal(relation())
    stream.change_catalog(701, ACCOUNT, RENAMED)
    stream.change_catalog(701, HEAP, transient(RENAMED))
    stream.insert(701, HEAP, packed_row(1))
    stream.insert(701, HEAP, packed_row(2))
    stream.change_catalog(701, HEAP, None)
    stream.insert(701, ACCOUNT, packed_row(3))
    stream.commit(701)
    rewritten = ["alter rewrite konto", "begin", "r konto 1/-", "r konto 2/-", "end"]
    assert brief(stream) == [*rewritten, "i konto 3/-"]


def test_a_rewrite_stays_open_over_rows_of_other_tables_and_ends_with_its_heap() -> None:
    stream = Wal(relation(), relation("log", 16390))
    stream.change_catalog(701, HEAP, transient(relation()))
    stream.insert(701, HEAP, packed_row(1))
    stream.insert(701, 16390, packed_row(7))
    stream.insert(701, HEAP, packed_row(2))
    stream.change_catalog(701, HEAP, None)
    stream.commit(701)
    assert brief(stream) == ["begin", "r account 1/-", "i log 7/-", "r account 2/-", "end"]


def test_two_rewrites_of_one_table_are_two_pairs_of_boundaries() -> None:
    stream = Wal(relation())
    for number in (1, 2):
        heap = HEAP + number
        stream.change_catalog(701, heap, replace(transient(relation()), oid=Oid(heap)))
        stream.insert(701, heap, packed_row(number))
        stream.change_catalog(701, heap, None)
    stream.commit(701)
    assert brief(stream) == ["begin", "r account 1/-", "end", "begin", "r account 2/-", "end"]


def test_a_rewrite_in_a_rolled_back_savepoint_is_removed_and_may_be_repeated() -> None:
    stream = Wal(relation())
    stream.insert(701, ACCOUNT, packed_row(1))
    stream.change_catalog(702, HEAP, transient(relation()), top=701)
    stream.insert(702, HEAP, packed_row(2))
    stream.abort(702)
    stream.change_catalog(701, HEAP, transient(relation()))
    stream.insert(701, HEAP, packed_row(3))
    stream.commit(701)
    assert brief(stream) == ["i account 1/-", "begin", "r account 3/-", "end"]


def test_a_rewrite_is_announced_even_if_a_row_of_another_table_precedes_it() -> None:
    stream = Wal(relation(), relation("log", 16390))
    stream.change_catalog(701, ACCOUNT, RENAMED)
    stream.change_catalog(701, HEAP, transient(RENAMED))
    stream.insert(701, 16390, packed_row(7))
    stream.insert(701, HEAP, packed_row(1))
    stream.commit(701)
    assert brief(stream) == ["alter rewrite konto", "i log 7/-", "begin", "r konto 1/-", "end"]


def test_a_table_that_becomes_logged_is_created_with_all_its_rows() -> None:
    unlogged = replace(relation(), persistence="u")
    stream = Wal(unlogged)
    stream.change_catalog(701, HEAP, transient(relation()))
    stream.insert(701, HEAP, packed_row(1))
    stream.change_catalog(701, HEAP, None)
    stream.change_catalog(701, ACCOUNT, relation())
    stream.commit(701)
    assert brief(stream) == ["create rewrite account", "begin", "r account 1/-", "end"]


@pytest.mark.parametrize("is_unlogged", [False, True])
def test_a_table_that_becomes_unlogged_still_exists_after_its_drop_event(*, is_unlogged: bool) -> None:
    stream = Wal(relation())
    stream.change_catalog(701, ACCOUNT, replace(relation(), persistence="u") if is_unlogged else None)
    stream.commit(701)
    (event,) = reported(stream.committed[0])
    assert isinstance(event, SchemaEvent)
    assert (event.change, event.after, event.still_exists) == (SchemaChange.DROP, None, is_unlogged)


def test_a_materialized_views_refresh_is_passed_over() -> None:
    view = replace(relation("summary", 16395), kind="m")
    stream = Wal(view)
    stream.change_catalog(701, HEAP, transient(view))
    stream.insert(701, HEAP, packed_row(1))
    stream.commit(701)
    assert stream.out == []


def test_the_effect_of_a_rewrite_is_reported_even_of_an_unchanged_description() -> None:
    stream = Wal(relation())
    stream.change_catalog(701, HEAP, transient(relation()))
    stream.insert(701, HEAP, packed_row(1))
    stream.commit(701)
    begin, _, end = reported(stream.committed[0])
    assert isinstance(begin, RewriteBoundary)
    assert isinstance(end, RewriteBoundary)
    assert (begin.relation, begin.begin, end.begin) == (relation(), True, False)
    assert SchemaEffect.REWRITE.value == "rewrite"


def test_an_event_compares_with_the_previous_event_and_not_with_the_start_of_the_transaction() -> None:
    def questions(tables: int) -> int:
        stream = Wal()
        for oid in range(20000, 20000 + tables):
            stream.change_catalog(701, oid, relation(f"t{oid}", oid))
            stream.insert(701, oid, packed_row(1))
        stream.commit(701)
        assert len(brief(stream)) == 2 * tables
        return stream.catalog.questions

    assert questions(200) == 10 * questions(20)


def test_an_event_that_was_rolled_back_with_its_savepoint_is_reported_again() -> None:
    stream = Wal(relation())
    stream.change_catalog(701, 16390, relation("new", 16390))
    stream.change_catalog(702, 16391, relation("gone", 16391), top=701)
    stream.catalog.look_different(701, ACCOUNT, RENAMED)  # as another transaction's commit would
    stream.insert(702, ACCOUNT, packed_row(1))
    stream.abort(702)
    stream.change_catalog(701, 16392, relation("last", 16392))
    stream.insert(701, ACCOUNT, packed_row(2))
    stream.commit(701)
    assert brief(stream) == ["create metadata new", "alter metadata konto", "create metadata last", "i konto 2/-"]
