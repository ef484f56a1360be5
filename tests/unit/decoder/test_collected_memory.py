"""Memory that one group of rows passes to the next, and long runs of rows that are kept in their order."""

from tidemark.decode.datum.row_entries import ENTRY, ENTRY_BYTES, ROWS_AT
from tidemark.decode.groups.group_rows import ARENA_KEPT_BYTES, Arena
from tidemark.decode.transactions.reorder_buffer.rowlog import RUN_BYTES, RelationVersions, RowChunk, RowLog

FIRST, SECOND = 701, 702
TUPLE = b"t" * 60


def test_an_arena_contains_what_was_put_since_it_was_cleared() -> None:
    arena = Arena()
    groups: list[list[bytes]] = [[b"long one", b"and more"], [b"short"], [], [b"a", b"longer than all of them before"]]
    for parts in groups:
        arena.clear()
        for part in parts:
            arena.put(memoryview(part))
        assert arena.content() == b"".join(parts)
        assert arena.size == len(b"".join(parts))


def test_an_arena_that_had_to_be_very_large_is_released() -> None:
    arena = Arena()
    arena.put(bytes(ARENA_KEPT_BYTES + 1))
    before = arena.content()
    arena.clear()
    arena.put(b"small")
    assert arena.content() == b"small"
    assert arena.content() is not before


def test_long_and_short_runs_of_rows_are_read_in_order_and_a_tail_of_both_can_be_cut_off() -> None:
    log = RowLog(RelationVersions())
    counts = {FIRST: 3, SECOND: RUN_BYTES // ENTRY_BYTES}
    for xid in (FIRST, SECOND, FIRST):
        entries = b"".join(
            ENTRY.pack(ord("i"), 0, 0, 0, xid, len(TUPLE), 0xFFFFFFFF, row) for row in range(counts[xid])
        )
        log.extend(memoryview(entries), memoryview(TUPLE * counts[xid]), 0)
    xids = [xid for _, chunk in log.chunks(None) for xid in chunk.xids()]
    assert xids == [FIRST] * 3 + [SECOND] * counts[SECOND] + [FIRST] * 3
    assert log.byte_count == len(xids) * (ENTRY_BYTES + len(TUPLE))
    log.drop({FIRST})
    log.drop({SECOND})
    assert [xid for _, chunk in log.chunks(None) for xid in chunk.xids()] == [FIRST] * 3
    assert log.byte_count == 3 * (ENTRY_BYTES + len(TUPLE))


def test_entries_of_several_rows_count_all_of_them() -> None:
    counts = [(FIRST, 0), (FIRST, 3), (SECOND, 2), (FIRST, 0), (SECOND, 0)]
    entries = b"".join(
        ENTRY.pack(ord("i"), 0, 0, 0, xid, 0xFFFFFFFF, 0xFFFFFFFF, 0)[:ROWS_AT]
        + rows.to_bytes(4, "little")
        + bytes(ENTRY_BYTES - ROWS_AT - 4)
        for xid, rows in counts
    )
    assert RowChunk(entries, b"", 3).rows_of() == {FIRST: 5, SECOND: 3}
    assert RowChunk(entries[:ENTRY_BYTES], b"", 0).rows_of() == {FIRST: 1}
