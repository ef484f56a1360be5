"""The memory of the records of large batches: used again, and never while a record can be read from it."""

import gc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.forged.groups import DATABASE, group
from tests.support.processes.json_lines import lines_in
from tests.support.samples.changed_rows import SampleRow, batch_of, customers
from tidemark import Batch, DebeziumJson, SerializedRecord
from tidemark.decode.render.debezium import DebeziumLines
from tidemark.model.change import ChangeBatch
from tidemark.serializers.record_columns import FIRST_ROW_BYTES, FIRST_ROWS
from tidemark.serializers.text_blocks import BLOCK_BYTES, KEPT_BLOCKS_MAX, LineText, TextBlocks

NOW_NS = 1_700_000_000_123_456_789
MANY = 5000  # whose texts need several stretches, and more memory than the first
TABLE = customers("id", "name")


def inserted(name: str, rows: int = MANY, long: int = -1) -> Batch:
    """Return a batch of inserts; row `long` has a value that is longer than the first memory."""
    made: list[SampleRow] = []
    for number in range(rows):
        value = "x" * (FIRST_ROWS * FIRST_ROW_BYTES + 1) if number == long else f"{name} {number}"
        made.append(("i", None, {"id": number, "name": value}))
    return batch_of(*made, of=TABLE)


def printed(batch: Batch) -> list[bytes]:
    lines = DebeziumLines({DATABASE: "shop"}, version=DebeziumJson()._version, now_ns=lambda: NOW_NS)  # noqa: SLF001
    return lines_in(lines.lines(group(4096, [ChangeBatch(DATABASE, TABLE, batch.arrow)])))


def values(records: Sequence[SerializedRecord]) -> list[bytes | None]:
    return [record.value for record in records]


@pytest.mark.parametrize("long", [-1, 0, MANY // 2, MANY - 1])
def test_the_values_of_many_rows_are_the_lines_that_cdcctl_prints(long: int) -> None:
    batch = inserted("a", long=long)
    assert values(DebeziumJson().records(batch, NOW_NS)) == printed(batch)


def test_records_stay_as_they_are_while_later_batches_use_memory_that_was_returned() -> None:
    serializer = DebeziumJson()
    batches = [inserted(name) for name in "abcd"]
    first, second = (serializer.records(batch, NOW_NS) for batch in batches[:2])
    del first
    gc.collect()
    third, fourth = (serializer.records(batch, NOW_NS) for batch in batches[2:])
    for records, batch in ((second, batches[1]), (third, batches[2]), (fourth, batches[3])):
        assert values(records) == printed(batch)


def test_a_block_that_was_returned_is_used_again() -> None:
    blocks = TextBlocks()
    block = blocks.take()
    assert blocks.take() is not block
    blocks.give(block)
    assert blocks.take() is block


def test_unused_blocks_are_kept_up_to_a_bound_and_other_memory_is_not() -> None:
    blocks = TextBlocks()
    taken = [blocks.take() for _ in range(KEPT_BLOCKS_MAX + 1)]
    blocks.give(np.empty(2 * BLOCK_BYTES, np.uint8))
    for block in taken:
        blocks.give(block)
    again = [blocks.take() for _ in range(KEPT_BLOCKS_MAX + 1)]
    assert {id(block) for block in again} & {id(block) for block in taken} == {id(block) for block in taken[:-1]}
    assert {len(block) for block in again} == {BLOCK_BYTES}


@pytest.mark.parametrize("bytes_of_a_line", [600, 1500, 40_000, 400_000])
def test_few_rows_need_little_more_memory_than_their_text(bytes_of_a_line: int) -> None:
    text = LineText(2 * FIRST_ROW_BYTES, TextBlocks())
    for _ in range(2):
        while len(text.space()) < bytes_of_a_line:
            text.enlarge()
        text.take(bytes_of_a_line)
    assert text.memory_bytes <= 2 * FIRST_ROW_BYTES + 4 * text.size


@given(st.lists(st.binary(max_size=40), min_size=1), st.integers(1, 30), st.data())
def test_each_line_can_be_read_from_the_blocks(lines: list[bytes], first_bytes: int, data: st.DataObject) -> None:
    text = LineText(first_bytes, TextBlocks(block_bytes=16))
    for line in lines:
        while len(text.space()) < len(line):
            text.enlarge()
        text.space()[: len(line)] = line
        assert bytes(text.take(len(line))) == line
    bounds = np.cumsum([0, *map(len, lines)])
    first = data.draw(st.integers(0, len(lines)))
    last = data.draw(st.integers(first, len(lines)))
    assert text.read(int(bounds[first]), int(bounds[last])) == b"".join(lines[first:last])
    filled = np.array([begin for begin, line in zip(bounds[:-1].tolist(), lines, strict=True) if line], np.int64)
    assert bytes(text.bytes_at(filled)) == b"".join(line[:1] for line in lines)
