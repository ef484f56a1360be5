"""A run of small transactions: its parts, its single transactions, and the commit times of a group's transactions."""

from collections.abc import Iterator
from itertools import combinations_with_replacement

import pytest

from tests.support.forged.forged_records import block_of, reported
from tests.support.forged.groups import end, message
from tests.unit.decoder.test_small_transactions import by_blocks, new_wal, tellers
from tidemark.decode.transactions.reorder_buffer.committed_run import (
    CommittedRun,
    EndsInGroup,
    SmallTransactions,
    commit_times_us,
    singly,
)
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction, RowRun


@pytest.fixture(scope="module")
def run() -> CommittedRun:
    """Return overlapping transactions: a restart before one of them begins earlier than the transaction itself."""
    found = [each for each in by_blocks(tellers(12), 1000) if isinstance(each, CommittedRun)]
    return max(found, key=len)


def content(transaction: CommittedTransaction) -> list[object]:
    return [transaction.end, transaction.restart_lsn, transaction.inner_restart_lsn, reported(transaction)]


def test_a_part_of_a_run_has_the_transactions_and_the_bytes_of_that_part_alone(run: CommittedRun) -> None:
    whole = [content(run.transaction(index)) for index in range(len(run))]
    sizes = [run.transaction(index).byte_count for index in range(len(run))]
    assert len(whole) > 5
    for start, stop in combinations_with_replacement(range(len(run) + 1), 2):
        part = run.cut(start, stop)
        assert [content(part.transaction(index)) for index in range(len(part))] == whole[start:stop]
        assert list(part.ends) == [run.ends.end(index) for index in range(start, stop)]
        assert part.byte_count == sum(sizes[start:stop])


def test_a_run_yields_its_transactions_one_by_one_and_passes_other_items_on(run: CommittedRun) -> None:
    single, between = run.transaction(0), message(900, b"between")
    passed = list(singly([single, run, between]))
    assert (passed[0], passed[-1]) == (single, between)
    found = [each for each in passed if isinstance(each, CommittedTransaction)]
    assert [content(each) for each in found[1:]] == [content(run.transaction(index)) for index in range(len(run))]


def test_unselected_rows_keep_their_ordinals_in_each_transaction_of_a_run() -> None:
    stream = tellers(20)
    decoder = new_wal().decoder
    decoder.select_only(lambda _: False)
    (run,) = [each for each in decoder.decode_runs(block_of(stream.raws)) if isinstance(each, CommittedRun)]
    for index in range(len(run)):
        runs = [item for item in run.transaction(index).items() if isinstance(item, RowRun)]
        assert runs[-1].ordinal(runs[-1].stop) == run.ends.row_counts[index] > sum(len(each.chunk) for each in runs)


def test_a_restart_within_a_transaction_skips_neither_its_beginning_nor_what_the_one_before_left_open(
    run: CommittedRun,
) -> None:
    earlier = set()
    for index in range(len(run)):
        first_lsn, restart_lsn = run.ends.first_lsns[index], run.restart_lsns[index]
        assert run.inner_restart_lsn(index) <= first_lsn
        assert run.inner_restart_lsn(index) <= restart_lsn
        assert run.inner_restart_lsn(index) in (first_lsn, restart_lsn)
        earlier.add(first_lsn < restart_lsn)
    assert True in earlier, "the transaction's own beginning decides somewhere"


def test_commit_times_are_the_same_however_the_ends_are_kept_and_small_ones_make_no_objects(
    run: CommittedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, single = run.ends, end(900)
    both = EndsInGroup()
    both.append(single)
    both.extend(small)
    expected = [each.commit_time_us for each in both]
    assert expected == [single.commit_time_us, *(each.commit_time_us for each in small)]
    assert list(commit_times_us((single,))) == [single.commit_time_us]

    def refused(_small: SmallTransactions) -> Iterator[object]:
        pytest.fail("an object is made for each transaction")

    monkeypatch.setattr(SmallTransactions, "__iter__", refused)
    assert list(commit_times_us(small)) == expected[1:]
    assert list(commit_times_us(both)) == expected
