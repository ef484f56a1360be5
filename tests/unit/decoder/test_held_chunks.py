"""Layouts of rows with values out of line: bounded in number, and known again after all were forgotten."""

from tidemark.decode.transactions.held_chunks import LAYOUT_INTEGERS_MAX, HeldChunks

COLUMNS_MAX = 1600  # of a table (MaxHeapAttributeNumber, htup_details.h)
LENGTHS, ALIGNS = [-1] * COLUMNS_MAX, [4] * COLUMNS_MAX
TABLES = LAYOUT_INTEGERS_MAX // (2 * COLUMNS_MAX) + 2  # more than are kept


def test_a_layout_is_known_again_after_too_many_were_set() -> None:
    chunks = HeldChunks()
    for number in range(TABLES):
        chunks.set_layout(number, LENGTHS, ALIGNS)
    assert not chunks.has_layout(0)
    chunks.set_layout(0, LENGTHS, ALIGNS)
    assert chunks.has_layout(0)
    assert chunks.has_layout(TABLES - 1)


def test_a_known_layout_takes_no_more_space() -> None:
    chunks = HeldChunks()
    for number in range(3):
        for _ in range(TABLES):
            chunks.set_layout(number, LENGTHS, ALIGNS)
    assert all(chunks.has_layout(number) for number in range(3))


def test_a_table_with_a_column_of_no_known_length_has_no_layout() -> None:
    chunks = HeldChunks()
    for length in (0, -2):  # -2: cstring
        chunks.set_layout(1, [4, length], [4, 1])
    assert not chunks.has_layout(1)
