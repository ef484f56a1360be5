"""The cost of decoding: counts, and a ratio to a loop in the same run; no times."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest

from tests.support.forged.forged_records import Wal, block_of, external, packed_chunk, packed_row
from tests.support.forged.groups import relation
from tests.unit.decoder.test_group_builder import DIALECTS, groups_of
from tests.unit.decoder.test_small_transactions import (
    ACCOUNT,
    calls_outside_kernels,
    collected,
    lines_outside_kernels,
    new_wal,
)
from tidemark.decode.datum.varlena import ExternalPointer
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.decode.render.debezium import DebeziumLines
from tidemark.decode.render.jsonl import JsonLines
from tidemark.model.change import ChangeBatch, ChangeGroup
from tidemark.model.lsn import Oid
from tidemark.model.relation import Relation, ReplicaIdentity
from tidemark.wal.kernel import COMPILED
from tidemark.wal.page import RecordBlock
from tidemark.wal.rmgr import heap

XID, HEAP = 801, 16400
TOAST_TABLE = Relation(Oid(16388), "pg_toast", "pg_toast_16385", "t", "p", (), ReplicaIdentity.NOTHING)
ROWS = 4000
BLOCKS = 2
STEPS_MORE = ROWS // 100  # of Python, outside the kernels, for four times the rows; none at the time of writing
TURNS = 9
STEPS_A_ROW = 32  # of a loop in Python for a row of two columns in compiled kernels; 14 to 20 at the time of writing


def inserted(rows: int) -> Wal:
    """Return a transaction of so many rows."""
    stream = new_wal()
    for number in range(rows):
        stream.insert(XID, ACCOUNT, packed_row(number))
    stream.commit(XID)
    return stream


def inserted_by_ddl(rows: int) -> Wal:
    """Return a transaction that changes a table and writes so many rows to it, and rewrites it with as many."""
    stream = new_wal()
    stream.change_catalog(XID, ACCOUNT, relation("konto"))
    for number in range(rows // 2):
        stream.insert(XID, ACCOUNT, packed_row(number))
    stream.change_catalog(XID, HEAP, replace(relation("pg_temp", HEAP), rewrite_of=Oid(ACCOUNT)))
    for number in range(rows // 2):
        stream.insert(XID, HEAP, packed_row(number))
    stream.commit(XID)
    return stream


def inserted_if_absent(rows: int) -> Wal:
    """Return a transaction of so many rows, each inserted and then confirmed, as INSERT ... ON CONFLICT does."""
    stream = new_wal()
    for number in range(rows):
        stream.insert(XID, ACCOUNT, packed_row(number), flags=heap.INSERT_IS_SPECULATIVE, offset=number)
        stream.confirm(XID, ACCOUNT, offset=number)
    stream.commit(XID)
    return stream


def inserted_out_of_line(rows: int) -> Wal:
    """Return a transaction of so many rows, each with its chunks before it; a quarter of them after DDL."""
    stream = new_wal(TOAST_TABLE)
    for number in range(rows):
        if number == rows * 3 // 4:
            stream.change_catalog(XID, ACCOUNT, relation("konto"))
        for part in range(2):
            stream.insert(XID, TOAST_TABLE.oid, packed_chunk(1000 + number, part, bytes(50)))
        pointer = ExternalPointer(104, 100, 0, Oid(1000 + number), TOAST_TABLE.oid)
        packed = packed_row(number, external(pointer))
        if number % 3 == 0:
            stream.insert(XID, ACCOUNT, packed, flags=heap.INSERT_IS_SPECULATIVE, offset=number)
            stream.confirm(XID, ACCOUNT, offset=number)
        elif number % 3 == 1:
            stream.multi_insert(XID, ACCOUNT, [packed])
        else:
            stream.update(XID, ACCOUNT, packed)
            stream.delete(XID, TOAST_TABLE.oid)
    stream.commit(XID)
    return stream


def inserted_large(chunks: int) -> Wal:
    """Return a transaction of three rows, each with a value of so many chunks."""
    stream = new_wal(TOAST_TABLE)
    for number in range(3):
        for part in range(chunks):
            stream.insert(XID, TOAST_TABLE.oid, packed_chunk(1000 + number, part, bytes(50)))
        pointer = ExternalPointer(50 * chunks + 4, 50 * chunks, 0, Oid(1000 + number), TOAST_TABLE.oid)
        stream.insert(XID, ACCOUNT, packed_row(number, external(pointer)))
    stream.commit(XID)
    return stream


def blocks_of(stream: Wal, count: int) -> list[RecordBlock]:
    size = -(-len(stream.raws) // count)
    return [block_of(stream.raws[begin : begin + size]) for begin in range(0, len(stream.raws), size)]


def decode(blocks: Sequence[RecordBlock], recorded: Wal | None = None) -> int:
    """Decode from blocks to batches; return how many rows there are. `recorded`: the stream whose DDL they repeat."""
    stream, builder = new_wal(TOAST_TABLE), GroupBuilder(DIALECTS)
    if recorded is not None:
        stream.catalog.script = recorded.catalog.script
    decoder = stream.decoder
    groups = [group for block in blocks for found in decoder.decode_runs(block) for group in collected(builder, found)]
    last = builder.flush()
    assert last is not None
    items = [item for group in (*groups, last) for item in group.items]
    return sum(item.rows.num_rows for item in items if isinstance(item, ChangeBatch))


@pytest.mark.parametrize("steps", [calls_outside_kernels, lines_outside_kernels])
@pytest.mark.parametrize("write", [inserted, inserted_by_ddl, inserted_if_absent])
def test_rows_of_a_block_cost_no_call_and_no_line_of_python_each(
    write: Callable[[int], Wal], steps: Callable[[Callable[[], object]], int]
) -> None:
    taken = {}
    for rows in (ROWS // 4, ROWS):
        stream = write(rows)
        blocks = blocks_of(stream, BLOCKS)
        taken[rows] = steps(partial(decode, blocks, stream))
    assert taken[ROWS] - taken[ROWS // 4] < STEPS_MORE, taken


def test_rows_with_chunks_cost_no_line_of_python_each() -> None:
    taken = {}
    for rows in (240, 960):  # the DDL comes at the same step of the three
        stream = inserted_out_of_line(rows)
        blocks = blocks_of(stream, 1)
        taken[rows] = lines_outside_kernels(partial(decode, blocks, stream))
    assert taken[960] - taken[240] < STEPS_MORE, taken


def test_a_value_in_several_blocks_costs_no_line_of_python_for_each_chunk() -> None:
    taken = {}
    for chunks in (240, 960):
        blocks = [*blocks_of(inserted_large(3), 1), *blocks_of(inserted_large(chunks), 7)]
        taken[chunks] = lines_outside_kernels(partial(decode, blocks))
    assert taken[960] - taken[240] < STEPS_MORE, taken


def test_rows_cost_no_call_of_python_each_on_their_way_to_json() -> None:
    for rendering in (JsonLines({}), DebeziumLines({}, version="1", now_ns=lambda: 0)):
        calls = {}
        for rows in (ROWS // 4, ROWS):
            (group,) = groups_of(inserted(rows), GroupBuilder(DIALECTS))
            calls[rows] = calls_outside_kernels(partial(lines_of, rendering, group))
        assert calls[ROWS] - calls[ROWS // 4] < ROWS // 10, (rendering, calls)


def lines_of(rendering: JsonLines | DebeziumLines, group: ChangeGroup) -> int:
    """Render a group; return the number of bytes."""
    return sum(len(block) for block in rendering.lines(group))


@pytest.mark.skipif(not COMPILED, reason="interpreted kernels are slow")
def test_a_row_costs_at_most_a_fixed_number_of_loop_steps_in_the_same_run() -> None:
    blocks = blocks_of(inserted(ROWS), BLOCKS)
    assert decode(blocks) == ROWS

    def loop() -> None:
        total = 0
        for number in range(ROWS):
            total += number

    decoding, looping = least_cpu_ns(partial(decode, blocks), loop)
    assert decoding < STEPS_A_ROW * looping, decoding / looping


def least_cpu_ns(*works: Callable[[], object]) -> list[int]:
    """Return the least CPU time of each function, called in rotation: other load only adds to it."""
    least = [1 << 62] * len(works)
    for _ in range(TURNS):
        for number, work in enumerate(works):
            begun = time.process_time_ns()
            work()
            least[number] = min(least[number], time.process_time_ns() - begun)
    return least
