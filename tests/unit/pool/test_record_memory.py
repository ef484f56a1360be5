"""The memory of the records of large batches: used again, and never while a record can be read from it."""

import gc
from collections.abc import Sequence

import pytest

from tests.support.forged.groups import DATABASE, group
from tests.support.processes.json_lines import lines_in
from tests.support.samples.changed_rows import SampleRow, batch_of, customers
from tidemark import Batch, DebeziumJson, SerializedRecord
from tidemark.decode.render.debezium import DebeziumLines
from tidemark.model.change import ChangeBatch
from tidemark.serializers.record_columns import FIRST_ROW_BYTES, FIRST_ROWS
from tidemark.serializers.text_buffers import KEPT_BYTES_MAX, SMALL_BYTES, TextBuffers

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


def test_a_buffer_that_was_returned_is_used_again_if_it_is_large_enough() -> None:
    buffers = TextBuffers()
    buffer = buffers.take(2 * SMALL_BYTES)
    buffers.give(buffer)
    assert buffers.take(SMALL_BYTES + 1) is buffer
    assert buffers.take(SMALL_BYTES + 1) is not buffer
    buffers.give(buffer)
    assert len(buffers.take(2 * SMALL_BYTES + 1)) == 2 * SMALL_BYTES + 1


def test_unused_buffers_are_kept_up_to_a_bound() -> None:
    buffers = TextBuffers()
    large = [buffers.take(KEPT_BYTES_MAX // 2) for _ in range(3)]
    for buffer in large:
        buffers.give(buffer)
    assert buffers.take(KEPT_BYTES_MAX // 2) is large[1]
    assert buffers.take(KEPT_BYTES_MAX // 2) is large[0]
    assert all(buffers.take(KEPT_BYTES_MAX // 2) is not buffer for buffer in large)
