"""Groups: contiguous, bounded, cut at barriers, with pointers from which nothing is missed."""

from dataclasses import replace

from tests.support.forged.forged_records import Wal, packed_row
from tests.support.forged.groups import DATABASE, relation
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.decode.types.codec import Dialect
from tidemark.model.capture_change import CaptureChange
from tidemark.model.change import ChangeBatch, ChangeGroup, LogicalMessage, SchemaEvent, Truncation
from tidemark.model.lsn import Xid

ACCOUNT, LEDGER = 16385, 16390
DIALECTS = {DATABASE: Dialect()}


def wal() -> Wal:
    return Wal(relation(), relation("ledger", LEDGER))


def groups_of(stream: Wal, builder: GroupBuilder) -> list[ChangeGroup]:
    """Feed the output of the decoder; return all groups, the last one flushed."""
    groups: list[ChangeGroup] = []
    for decoded in stream.out:
        if isinstance(decoded, CommittedTransaction):
            groups.extend(builder.add_transaction(decoded))
        elif isinstance(decoded, LogicalMessage):
            groups.extend(builder.add_message(decoded, stream.decoder.restart_lsn))
    last = builder.flush()
    return groups if last is None else [*groups, last]


def ids(batch: object) -> list[int]:
    assert isinstance(batch, ChangeBatch)
    return [row["id"] for row in batch.rows.column("_after").to_pylist()]


def test_rows_of_one_relation_are_one_batch_across_transactions() -> None:
    stream = wal()
    for xid in (701, 702):
        stream.insert(xid, ACCOUNT, packed_row(xid))
        stream.insert(xid, LEDGER, packed_row(xid))
        stream.commit(xid)
    (group,) = groups_of(stream, GroupBuilder(DIALECTS))
    assert [(item.relation.name, ids(item)) for item in group.items if isinstance(item, ChangeBatch)] == [
        ("account", [701, 702]),
        ("ledger", [701, 702]),
    ]
    assert [end.xid for end in group.transactions] == [701, 702]
    assert group.row_count == 4


def test_every_row_carries_its_position() -> None:
    stream = wal()
    first = stream.insert(701, ACCOUNT, packed_row(1))
    stream.insert(701, LEDGER, packed_row(2))
    stream.insert(701, ACCOUNT, packed_row(3))
    commit = stream.commit(701)
    (group,) = groups_of(stream, GroupBuilder(DIALECTS))
    batch = group.items[0]
    assert isinstance(batch, ChangeBatch)
    assert batch.rows.column("_ordinal").to_pylist() == [0, 2]
    assert batch.rows.column("_commit_lsn").to_pylist() == [commit, commit]
    assert batch.rows.column("_lsn").to_pylist()[0] == first
    assert (group.first.ordinal, group.last.position.ordinal) == (0, 2)


def test_a_full_group_ends_inside_a_transaction_and_points_before_it() -> None:
    stream = wal()
    begin = stream.insert(701, ACCOUNT, packed_row(0))
    for number in range(1, 5):
        stream.insert(701, ACCOUNT, packed_row(number))
    stream.commit(701)
    first, second, third = groups_of(stream, GroupBuilder(DIALECTS, rows_max=2))
    assert [ids(group.items[0]) for group in (first, second, third)] == [[0, 1], [2, 3], [4]]
    assert [group.last.position.ordinal for group in (first, second, third)] == [1, 3, 4]
    assert first.last.restart_lsn == second.last.restart_lsn == begin
    assert third.last.restart_lsn == stream.decoder.decoded_lsn
    assert [len(group.transactions) for group in (first, second, third)] == [0, 0, 1]


def test_a_group_that_is_full_at_a_commit_contains_that_commit() -> None:
    stream = wal()
    stream.insert(701, ACCOUNT, packed_row(1))
    stream.insert(701, ACCOUNT, packed_row(2))
    stream.commit(701)
    (group,) = groups_of(stream, GroupBuilder(DIALECTS, rows_max=2))
    assert len(group.transactions) == 1
    assert group.last.restart_lsn == stream.decoder.decoded_lsn


def test_bytes_fill_a_group_as_rows_do() -> None:
    stream = wal()
    for number in range(4):
        stream.insert(701, ACCOUNT, packed_row(number, bytes(5000)))
    stream.commit(701)
    groups = groups_of(stream, GroupBuilder(DIALECTS, bytes_max=10_000))
    assert [group.row_count for group in groups] == [2, 2]


def test_batches_never_reach_over_a_schema_event_or_a_truncate() -> None:
    stream = wal()
    stream.insert(701, ACCOUNT, packed_row(1))
    stream.change_catalog(701, ACCOUNT, relation("konto"))
    stream.insert(701, LEDGER, packed_row(2))
    stream.truncate(701, LEDGER)
    stream.insert(701, LEDGER, packed_row(3))
    stream.commit(701)
    (group,) = groups_of(stream, GroupBuilder(DIALECTS))
    kinds = [type(item) for item in group.items]
    assert kinds == [ChangeBatch, SchemaEvent, ChangeBatch, Truncation, ChangeBatch]


def test_a_group_ends_before_the_event_by_which_a_table_leaves_the_selection() -> None:
    """Readers end at group ends: one that ends where the capture of a table does has all changes before."""
    stream = wal()
    stream.insert(701, ACCOUNT, packed_row(1))
    begin = stream.commit(701)
    stream.insert(702, ACCOUNT, packed_row(2))
    stream.change_catalog(702, ACCOUNT, relation("konto"))
    stream.insert(702, LEDGER, packed_row(3))
    stream.commit(702)
    stream.change_catalog(703, ACCOUNT, relation("konto_neu"))
    stream.change_catalog(703, ACCOUNT, relation())
    stream.insert(703, ACCOUNT, packed_row(4))
    stream.commit(703)
    first, second = groups_of(stream, GroupBuilder(DIALECTS, selected=lambda found: "konto" not in found.name))
    assert [ids(item) for item in first.items] == [[1, 2]]
    assert (first.last.position.commit_lsn > begin, first.last.position.ordinal) == (True, 0)
    assert [end.xid for end in first.transactions] == [701]
    left, *others = second.items
    assert isinstance(left, SchemaEvent)
    assert left.capture is CaptureChange.ENDS
    assert [ids(item) for item in others if isinstance(item, ChangeBatch)] == [[3], [4]]


def test_the_tables_of_a_database_that_leaves_the_selection_are_in_one_group() -> None:
    """Also those of a thousand tables; the others end no group."""
    others = [relation(f"other_{number}", LEDGER + number) for number in range(1, 1000)]
    root = replace(relation("root", 18_000), kind="p")
    parts = [replace(relation(f"part_{number}", 18_000 + number), ancestors=(root,)) for number in range(1, 10)]
    stream = Wal(relation(), relation("ledger", LEDGER), *others, root, *parts)
    stream.insert(701, ACCOUNT, packed_row(1))
    stream.commit(701)
    stream.databases.renamed_by = Xid(702)
    stream.insert(702, parts[0].oid, packed_row(2))
    stream.commit(702)
    builder = GroupBuilder(
        DIALECTS,
        selected=lambda found: not found.name.startswith("other_"),
        root_of=lambda lineage: lineage[-1],
    )
    first, second = groups_of(stream, builder)
    assert [ids(item) for item in first.items] == [[1], [2]]
    events = [item for item in second.items if isinstance(item, SchemaEvent)]
    assert [event.capture for event in events] == [CaptureChange.ENDS] * 3
    assert [event.before.name for event in events if event.before is not None] == ["account", "ledger", "root"]


def test_messages_do_not_end_batches() -> None:
    stream = wal()
    stream.insert(701, ACCOUNT, packed_row(1))
    stream.message(b"note", b"", xid=701)
    stream.insert(701, ACCOUNT, packed_row(2))
    stream.commit(701)
    stream.message(b"note", b"outside")
    (group,) = groups_of(stream, GroupBuilder(DIALECTS))
    assert [type(item) for item in group.items] == [LogicalMessage, LogicalMessage, ChangeBatch]
    assert isinstance(group.items[1], LogicalMessage)
    assert group.last.position == group.items[1].position


def test_rows_that_are_not_selected_move_the_position_and_nothing_else() -> None:
    stream = wal()
    stream.insert(701, LEDGER, packed_row(1))
    stream.insert(701, ACCOUNT, packed_row(2))
    stream.insert(701, LEDGER, packed_row(3))
    stream.commit(701)
    (group,) = groups_of(stream, GroupBuilder(DIALECTS, selected=lambda found: found.name == "account"))
    (batch,) = group.items
    assert isinstance(batch, ChangeBatch)
    assert batch.rows.column("_ordinal").to_pylist() == [1]
    assert group.last.position.ordinal == 2


def test_materialized_views_are_never_in_batches() -> None:
    stream = Wal(replace(relation(), kind="m"))
    stream.insert(701, ACCOUNT, packed_row(1))
    stream.commit(701)
    (group,) = groups_of(stream, GroupBuilder(DIALECTS))
    assert group.items == []
    assert group.row_count == 0


def test_without_rows_there_is_no_group() -> None:
    assert GroupBuilder(DIALECTS).flush() is None
