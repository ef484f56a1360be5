"""Memory stays within its limit for any transaction, and spill files are removed with their transaction."""

from dataclasses import replace

import pytest

from tests.support.forged.forged_records import Wal, block_of, packed_chunk, packed_row, reported
from tests.support.forged.groups import relation
from tests.support.forged.memory_spill import MemorySpill
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.decode.transactions.reorder_buffer.transactions import TransactionTooLarge
from tidemark.model.change import LogicalMessage

ACCOUNT, TOAST = 16385, 16388
MEMORY_BYTES = 100_000
CONTENTS = [bytes([number]) * 20_000 for number in range(20)]


def test_messages_larger_than_memory_are_emitted_complete_and_in_order() -> None:
    spill = MemorySpill()
    wal = Wal(relation(), memory_bytes=MEMORY_BYTES, spill=spill)
    for number, content in enumerate(CONTENTS):
        wal.insert(701, ACCOUNT, packed_row(number))
        wal.message(b"large", content, xid=701)
        (transaction,) = wal.decoder.transactions
        assert transaction.byte_count <= MEMORY_BYTES
    wal.message(b"small", b"", xid=701)
    wal.insert(702, ACCOUNT, packed_row(99), top=701)
    wal.message(b"undone", CONTENTS[0], xid=702)
    wal.abort(702)
    wal.commit(701)
    (committed,) = wal.committed
    assert committed.byte_count <= MEMORY_BYTES
    *items, last = reported(committed)
    assert items[::2] == [f"i account {number}/-" for number in range(len(CONTENTS))]
    assert [item.content for item in items[1::2] if isinstance(item, LogicalMessage)] == CONTENTS
    assert isinstance(last, LogicalMessage)
    assert last.prefix == "small"
    committed.release()
    assert spill.writes
    assert not spill.kept


def test_the_abort_of_a_transaction_removes_its_spilled_messages() -> None:
    spill = MemorySpill()
    wal = Wal(relation(), memory_bytes=MEMORY_BYTES, spill=spill)
    for content in CONTENTS:
        wal.message(b"large", content, xid=701)
    assert spill.kept
    wal.abort(701)
    assert not spill.kept


def test_messages_without_a_spill_folder_are_refused() -> None:
    wal = Wal(relation(), memory_bytes=MEMORY_BYTES)
    wal.message(b"large", bytes(MEMORY_BYTES // 2), xid=701)
    with pytest.raises(TransactionTooLarge, match="701"):
        wal.message(b"large", bytes(MEMORY_BYTES // 2), xid=701)


def test_chunks_over_the_bound_do_not_drive_small_transactions_to_disk_one_by_one() -> None:
    spill = MemorySpill()
    wal = Wal(relation(), replace(relation("pg_toast", TOAST), kind="t"), memory_bytes=MEMORY_BYTES, spill=spill)
    for number in range(200):
        wal.insert(701, TOAST, packed_chunk(77, number, bytes(2000)))
        wal.insert(702 + number, ACCOUNT, packed_row(number))
        if number > 10:
            wal.commit(702 + number - 10)
    assert spill.writes == 0


def test_spilled_and_rolled_back_rows_are_removed_at_an_empty_commit() -> None:
    made = Wal(relation())
    made.update(701, ACCOUNT, packed_row(0))
    made.commit(701)  # from here on the file is known, and ordinary records are skipped
    made.assign(702, 703)  # so it is not pending
    made.insert(703, ACCOUNT, packed_row(1))
    made.abort(703)
    made.commit(702)
    spill = MemorySpill()
    wal = Wal(relation(), memory_bytes=1, spill=spill)
    for decoded in wal.decoder.decode_block(block_of(made.raws)):
        assert isinstance(decoded, CommittedTransaction)
        assert decoded.end.xid == 701
        decoded.release()
    assert spill.writes > 1
    assert not spill.kept
