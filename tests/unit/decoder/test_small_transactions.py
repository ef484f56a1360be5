"""Small transactions stay together from records to batches; the result is the same, only faster."""

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from tests.support.forged.forged_records import Wal, block_of, locator, packed_row, reported
from tests.support.forged.groups import relation
from tests.support.processes.python_calls import without_collection
from tests.unit.decoder.test_group_builder import DIALECTS
from tests.unit.decoder.test_group_builder_restart import positions
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.decode.transactions.decoder import DecodedRun
from tidemark.decode.transactions.pending_rows import LONG, SMALL_ROWS
from tidemark.decode.transactions.reorder_buffer.committed_run import CommittedRun, singly
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.decode.transactions.skim import PENDING_ROWS_MAX
from tidemark.model.change import ChangeBatch, ChangeGroup, TransactionEnd
from tidemark.model.lsn import FullXid, Oid
from tidemark.model.relation import Relation
from tidemark.model.snapshot import ReplayedSnapshot, Snapshot

ACCOUNT, LEDGER = 16385, 16390
BLOCK_RECORDS = 50
RM_BTREE = 11
CALLS_PER_TRANSACTION = 0.5  # of Python, outside the kernels, for one more in a block; 0.2 at the time of writing


def new_wal(*more: Relation) -> Wal:
    return Wal(relation(), relation("ledger", LEDGER), *more)


def tellers(count: int, sessions: int = 3) -> Wal:
    """Return transactions of three rows, several of them open at any time."""
    stream = new_wal()
    for number in range(count):
        stream.insert(801 + number, ACCOUNT, packed_row(number))
        stream.update(801 + number, LEDGER, packed_row(number))
        if number >= sessions:
            stream.delete(801 + number - sessions, LEDGER)
            stream.commit(801 + number - sessions)
    return stream


def by_blocks(stream: Wal, size: int = BLOCK_RECORDS, *tables: Relation) -> Iterator[DecodedRun]:
    """Decode the same records again, by blocks; the first record of a file, and so its transaction, is read singly."""
    decoder = (Wal(*tables) if tables else new_wal()).decoder
    for begin in range(0, len(stream.raws), size):
        yield from decoder.decode_runs(block_of(stream.raws[begin : begin + size]))


def collected(builder: GroupBuilder, found: DecodedRun) -> Iterator[ChangeGroup]:
    if isinstance(found, CommittedRun):
        return builder.add_run(found)
    assert isinstance(found, CommittedTransaction)
    return builder.add_transaction(found)


def groups(stream: Wal, builder: GroupBuilder, size: int = BLOCK_RECORDS, *tables: Relation) -> list[ChangeGroup]:
    made = [group for found in by_blocks(stream, size, *tables) for group in collected(builder, found)]
    last = builder.flush()
    return made if last is None else [*made, last]


def content(made: list[ChangeGroup]) -> list[object]:
    return [
        [
            group.first,
            group.last,
            group.row_count,
            group.byte_count,
            [end.xid for end in group.transactions],
            [item.rows.to_pylist() for item in group.items if isinstance(item, ChangeBatch)],
        ]
        for group in made
    ]


def test_small_transactions_are_emitted_together() -> None:
    found = list(by_blocks(tellers(100)))
    runs = [len(each) for each in found if isinstance(each, CommittedRun)]
    assert sum(runs) > 90
    assert len(runs) < 20


@pytest.mark.parametrize(
    "bounds", [(1, 1 << 20), (7, 1 << 20), (100, 1 << 20), (1 << 20, 1000), (1 << 20, 1), (64, 3000)]
)
def test_runs_result_in_the_same_groups_as_their_transactions_one_by_one(bounds: tuple[int, int]) -> None:
    stream = tellers(100)
    rows_max, bytes_max = bounds
    one_by_one = GroupBuilder(DIALECTS, rows_max=rows_max, bytes_max=bytes_max)
    expected = [group for transaction in stream.committed for group in one_by_one.add_transaction(transaction)]
    last = one_by_one.flush()
    expected += [] if last is None else [last]
    found = groups(stream, GroupBuilder(DIALECTS, rows_max=rows_max, bytes_max=bytes_max))
    pointers = [group.last.position for group in expected]
    assert [group.last.position for group in found] == pointers
    assert positions(found) == positions(expected)
    reported_of = [[end.xid for end in group.transactions] for group in expected]
    assert [[end.xid for end in group.transactions] for group in found] == reported_of
    assert [group.row_count for group in found] == [group.row_count for group in expected]


def test_groups_do_not_depend_on_where_blocks_end() -> None:
    stream = tellers(60)
    expected = content(groups(stream, GroupBuilder(DIALECTS, rows_max=20), 1))
    for size in (2, 3, 10, 1000):
        assert content(groups(stream, GroupBuilder(DIALECTS, rows_max=20), size)) == expected


def test_delivered_or_copied_changes_are_omitted_from_runs_as_well() -> None:
    stream = tellers(40)

    def copied(table: Oid, end: TransactionEnd) -> bool:
        return table == LEDGER and end.full_xid <= 820

    everything = positions(groups(stream, GroupBuilder(DIALECTS)))
    for index in (0, 1, 50, len(everything) - 1):
        assert positions(groups(stream, GroupBuilder(DIALECTS, after=everything[index]))) == everything[index + 1 :]
    kept = content(groups(stream, GroupBuilder(DIALECTS, copied=copied)))
    snapshot = Snapshot(FullXid(821), FullXid(821), frozenset())
    assert content(groups(stream, GroupBuilder(DIALECTS, copied=copied, copied_by=(snapshot,)))) == kept
    assert len(positions(groups(stream, GroupBuilder(DIALECTS, copied=copied)))) == len(everything) - 2 * 20
    assert len(positions(groups(stream, GroupBuilder(DIALECTS, behind=snapshot)))) == len(everything) - 3 * 20
    standby = ReplayedSnapshot(FullXid(801), stream.committed[20].end.commit_lsn)
    assert len(positions(groups(stream, GroupBuilder(DIALECTS, behind=standby)))) == len(everything) - 3 * 20


def test_a_transaction_with_pending_rows_is_open_and_keeps_the_restart_lsn() -> None:
    stream = tellers(20, sessions=2)
    decoder = new_wal().decoder
    list(decoder.decode_runs(block_of(stream.raws)))
    assert decoder.transactions.open_count == 2
    assert decoder.restart_lsn == min(known.first_lsn for known in decoder.transactions)
    assert decoder.transactions.open_count == 2


def test_rows_of_a_growing_transaction_do_not_stay_pending_and_are_emitted_completely() -> None:
    stream = new_wal()
    for number in range(3):
        stream.insert(801 + number, ACCOUNT, packed_row(number))
        stream.commit(801 + number)
    for number in range(3 * SMALL_ROWS):
        stream.insert(810, ACCOUNT, packed_row(number))
        stream.insert(820 + number, LEDGER, packed_row(number))
        stream.commit(820 + number)
    stream.commit(810)
    found = list(by_blocks(stream))
    (large,) = [each for each in found if isinstance(each, CommittedTransaction) and each.end.xid == 810]
    assert reported(large) == [f"i account {number}/-" for number in range(3 * SMALL_ROWS)]
    assert sum(len(each) for each in found if isinstance(each, CommittedRun)) > 3 * SMALL_ROWS - 3


@pytest.mark.parametrize("rows", [1, PENDING_ROWS_MAX // LONG + 2])
def test_rows_of_a_long_transaction_do_not_stay_pending(rows: int) -> None:
    stream = new_wal()
    stream.insert(799, ACCOUNT, packed_row(0))
    stream.commit(799)
    for xid in range(801, 801 + LONG):
        for number in range(rows):
            stream.insert(xid, ACCOUNT, packed_row(number))
    for xid in range(10_001, 10_001 + 2 * LONG):
        stream.insert(xid, ACCOUNT, packed_row(0))
        stream.commit(xid)
    decoder = new_wal().decoder
    begun = len(stream.raws)
    for xid in range(801, 801 + LONG):
        stream.commit(xid)
    out: list[object] = []
    for begin in range(0, len(stream.raws), 1000):
        out += decoder.decode_block(block_of(stream.raws[begin : begin + 1000]))
        if begin + 1000 < begun:
            assert decoder.restart_lsn <= stream.raws[2][0] or decoder.decoded_lsn <= stream.raws[2][0]
    found = [each for each in out if isinstance(each, CommittedTransaction)]
    assert [each.end.xid for each in found] == [each.end.xid for each in stream.committed]
    assert [reported(each) for each in found] == [reported(each) for each in stream.committed]
    assert decoder.transactions.open_count == 0


def test_one_more_small_transaction_needs_no_further_call() -> None:
    few, many = (calls_of(tellers(count)) for count in (1000, 3000))
    assert many - few < CALLS_PER_TRANSACTION * 2000, (few, many)


def calls_of(stream: Wal) -> int:
    """Count the calls from blocks to batches."""
    blocks = [block_of(stream.raws[begin : begin + 1000]) for begin in range(0, len(stream.raws), 1000)]
    decoder, builder = new_wal().decoder, GroupBuilder(DIALECTS)
    made: list[ChangeGroup] = []

    def work() -> None:
        for block in blocks:
            for found in decoder.decode_runs(block):
                made.extend(collected(builder, found))
        last = builder.flush()
        assert last is not None
        made.append(last)

    calls = calls_outside_kernels(work)
    assert sum(len(group.transactions) for group in made) == len(stream.committed)
    return calls


class Steps:
    """Counts one kind of Python's trace events, except those in kernels, which may be interpreted."""

    def __init__(self, kind: str) -> None:
        self.outside_kernels = 0
        self._kind = kind

    def __call__(self, frame: FrameType, event: str, _: object) -> "Steps | None":
        """Return what traces the lines of the frame: nothing does in a kernel, which may have a hundred times more."""
        if _is_of_kernels(frame.f_code.co_filename):
            return None
        if event == self._kind:
            self.outside_kernels += 1
        return self


@functools.cache
def _is_of_kernels(filename: str) -> bool:
    """Return whether it is a kernel, or the replacement of Cython for an interpreted one."""
    file = Path(filename)
    return file.with_suffix(".pxd").exists() or file.parent.name == "Cython" or file.stem == "cython_stub"


def calls_outside_kernels(work: Callable[[], object]) -> int:
    """Count the calls of Python functions that `work` makes, except those in kernels."""
    calls = Steps("call")
    with without_collection():
        sys.setprofile(calls)
        try:
            work()
        finally:
            sys.setprofile(None)
    return calls.outside_kernels


def lines_outside_kernels(work: Callable[[], object]) -> int:
    """Count the lines of Python that `work` runs, except those of kernels: one in a loop counts each time."""
    lines, before = Steps("line"), sys.gettrace()
    with without_collection():
        sys.settrace(lines)
        try:
            work()
        finally:
            sys.settrace(before)
    return lines.outside_kernels


def test_a_transaction_begins_with_the_first_record_that_names_it() -> None:
    stream = new_wal()
    for xid in (801, 802):
        stream.record(RM_BTREE, 0, b"", xid=xid, file=locator(ACCOUNT))
        first_lsn = stream.insert(xid, ACCOUNT, packed_row(xid))
        stream.commit(xid)
        assert stream.committed[-1].end.first_lsn == first_lsn
    by_block = [found.end for found in singly(by_blocks(stream)) if isinstance(found, CommittedTransaction)]
    assert by_block == [found.end for found in stream.committed]
