"""A group builder that continues after a position emits exactly the later changes, without those that were copied."""

from collections.abc import Iterator

import pytest

from tests.support.forged.forged_records import FORMAT, Wal, packed_row
from tests.support.forged.groups import DATABASE, relation
from tests.unit.decoder.test_group_builder import ACCOUNT, DIALECTS, LEDGER, groups_of
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.model.change import ChangeBatch, ChangeGroup, LogicalMessage, TransactionEnd, Truncation
from tidemark.model.lsn import Lsn, Oid
from tidemark.model.position import Position
from tidemark.wal.record import parse_record


def stream() -> Wal:
    made = Wal(relation(), relation("ledger", LEDGER))
    for xid in (701, 702, 703):
        made.insert(xid, ACCOUNT, packed_row(xid))
        made.insert(xid, LEDGER, packed_row(xid))
        made.multi_insert(xid, LEDGER, [packed_row(xid + copied) for copied in (10, 20, 30)])  # COPY: one LSN
        if xid == 702:
            made.truncate(xid, LEDGER)
        made.insert(xid, ACCOUNT, packed_row(xid + 1000))
        made.commit(xid)
    return made


def overlapping() -> Wal:
    """Return two overlapping transactions: the first to begin ends last."""
    made = Wal(relation(), relation("ledger", LEDGER))
    for number in range(3):
        for xid in (701, 702):
            made.insert(xid, ACCOUNT, packed_row(number))
            made.multi_insert(xid, LEDGER, [packed_row(number), packed_row(number + 100)])
    made.commit(702)
    made.insert(701, ACCOUNT, packed_row(9))
    made.commit(701)
    return made


def read_again(stream: Wal, start_lsn: Lsn) -> Wal:
    """Decode the same records from an LSN on."""
    again = Wal(relation(), relation("ledger", LEDGER))
    for lsn, end_lsn, raw in stream.raws:
        decoded = again.decoder.decode(parse_record(lsn, end_lsn, raw, FORMAT)) if lsn >= start_lsn else None
        if decoded is not None:
            again.out.append(decoded)
    return again


def positions(groups: list[ChangeGroup]) -> list[Position]:
    return sorted(position for group in groups for position in _positions(group))


def _positions(group: ChangeGroup) -> Iterator[Position]:
    for item in group.items:
        if isinstance(item, ChangeBatch):
            columns = (item.rows.column(name).to_pylist() for name in ("_tli", "_commit_lsn", "_ordinal"))
            yield from (Position(*position) for position in zip(*columns, strict=True))
        elif isinstance(item, Truncation | LogicalMessage):
            yield item.position


@pytest.mark.feature("P03")
def test_changes_after_any_position_are_emitted_exactly_once() -> None:
    everything = positions(groups_of(stream(), GroupBuilder(DIALECTS)))
    assert len(everything) == 19
    for index, position in enumerate(everything):
        rest = positions(groups_of(stream(), GroupBuilder(DIALECTS, after=position, rows_max=2)))
        assert rest == everything[index + 1 :]


@pytest.mark.feature("P03")
@pytest.mark.parametrize("rows_max", [1, 2, 5])
def test_the_pointer_of_any_cut_begins_where_all_of_the_rest_can_be_read(rows_max: int) -> None:
    everything = positions(groups_of(overlapping(), GroupBuilder(DIALECTS)))
    for group in groups_of(overlapping(), GroupBuilder(DIALECTS, rows_max=rows_max)):
        again = read_again(overlapping(), group.last.restart_lsn)
        rest = positions(groups_of(again, GroupBuilder(DIALECTS, after=group.last.position)))
        assert rest == everything[everything.index(group.last.position) + 1 :]


def test_changes_visible_to_the_copy_of_a_table_are_omitted_for_that_table_only() -> None:
    def copied(table: Oid, end: TransactionEnd) -> bool:
        assert end.database == DATABASE
        return table == LEDGER and end.full_xid <= 702

    groups = groups_of(stream(), GroupBuilder(DIALECTS, copied=copied))
    rows = {
        (item.relation.name, row["id"])
        for group in groups
        for item in group.items
        if isinstance(item, ChangeBatch)
        for row in item.rows.column("_after").to_pylist()
    }
    assert {row for name, row in rows if name == "ledger"} == {703, 713, 723, 733}
    assert {row for name, row in rows if name == "account"} == {701, 1701, 702, 1702, 703, 1703}
    assert not any(isinstance(item, Truncation) for group in groups for item in group.items)


def test_nothing_of_a_table_that_is_not_selected_is_emitted() -> None:
    groups = groups_of(stream(), GroupBuilder(DIALECTS, selected=lambda found: found.name == "account"))
    assert {item.relation.name for group in groups for item in group.items if isinstance(item, ChangeBatch)} == {
        "account"
    }
    assert not any(isinstance(item, Truncation) for group in groups for item in group.items)
