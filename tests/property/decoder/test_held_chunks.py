"""Rows with values out of line: joined with the chunks that are held, in any order, wherever blocks are cut."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.forged.forged_records import external, packed_chunk
from tests.support.forged.tuple_forms import BOOL, INT2, INT8, TEXT, UNKNOWN, column, form_tuple, plain, short
from tests.support.oracles.twins import interpreted
from tidemark.decode.datum.varlena import ExternalPointer
from tidemark.model.lsn import Oid
from tidemark.model.relation import TypeDescription
from tidemark.wal.page import RECORDS_MAX

slow_chunks = interpreted(
    "tidemark.decode.transactions.held_chunks",
    stand_in={"tidemark.decode.datum.lookup": interpreted("tidemark.decode.datum.lookup")},
)
FIRST_XID, FIRST_VALUE, TOAST = 701, 3000, Oid(16388)
TYPES = (BOOL, INT2, INT8, TEXT, UNKNOWN)  # alignments 1, 2, 8; variable ones 4 and 8


@dataclass
class OutOfLine:
    """A value in chunks; the pointer of a compressed one says that it is longer than what is stored."""

    content: bytes
    chunk_bytes: int
    is_compressed: bool
    value_id: int = 0

    @property
    def pointer(self) -> bytes:
        raw = len(self.content) + 4 + (100 if self.is_compressed else 0)
        return external(ExternalPointer(raw, len(self.content), 0, Oid(self.value_id), TOAST))

    @property
    def joined(self) -> bytes:
        return struct.pack("<I", len(self.content) + 4 << 2 | (2 if self.is_compressed else 0)) + self.content

    def chunks(self, is_short: bool) -> list[bytes]:  # noqa: FBT001
        parts = [self.content[at : at + self.chunk_bytes] for at in range(0, len(self.content), self.chunk_bytes)]
        return [packed_chunk(self.value_id, number, part, short=is_short) for number, part in enumerate(parts)]


@dataclass
class OwnerRow:
    xid: int
    types: Sequence[TypeDescription]
    values: Sequence[bytes | OutOfLine | None]
    is_consumed: bool
    has_short_chunks: bool

    @property
    def out_of_line(self) -> list[OutOfLine]:
        return [value for value in self.values if isinstance(value, OutOfLine)]

    def packed(self, *, is_joined: bool) -> bytes:
        stored = [
            (value.joined if is_joined else value.pointer) if isinstance(value, OutOfLine) else value
            for value in self.values
        ]
        return form_tuple([column(number, described) for number, described in enumerate(self.types)], stored)


@dataclass
class ChunkStep:
    """A record of the stream: a chunk, or the row that owns chunks before it."""

    row: OwnerRow
    value: OutOfLine | None
    packed: bytes
    ends_block: bool = False


CONTENTS = st.integers(1, 300).map(lambda size: bytes(number % 251 for number in range(size)))
FAR_VALUES = st.builds(OutOfLine, CONTENTS, st.integers(20, 150), st.booleans())


def values_of(described: TypeDescription) -> st.SearchStrategy[bytes | OutOfLine | None]:
    if described.length > 0:
        return st.none() | st.binary(min_size=described.length, max_size=described.length)
    near = st.binary(max_size=9).map(short) | st.binary(min_size=1, max_size=9).map(plain)
    return st.none() | near | FAR_VALUES


@st.composite
def rows(draw: st.DrawFn) -> OwnerRow:
    types = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=9))
    stored = draw(st.integers(1, len(types)))  # the columns behind were added later
    values = [draw(values_of(described)) for described in types[:stored]]
    xid = FIRST_XID + draw(st.integers(0, 2))
    return OwnerRow(xid, types, values, is_consumed=draw(st.booleans()), has_short_chunks=draw(st.booleans()))


@st.composite
def streams(draw: st.DrawFn) -> list[ChunkStep]:
    """Draw rows with their chunks before them; those of different transactions in any order."""
    queues: dict[int, list[ChunkStep]] = {}
    number = FIRST_VALUE
    for row in draw(st.lists(rows(), min_size=1, max_size=6)):
        steps = queues.setdefault(row.xid, [])
        for value in row.out_of_line:
            number += 1
            value.value_id = number
            steps += [ChunkStep(row, value, packed) for packed in value.chunks(row.has_short_chunks)]
        steps.append(ChunkStep(row, None, row.packed(is_joined=False)))
    merged: list[ChunkStep] = []
    while queues:
        queue = queues[draw(st.sampled_from(sorted(queues)))]
        merged.append(queue.pop(0))
        queues = {xid: left for xid, left in queues.items() if left}
    for step in merged:
        step.ends_block = draw(st.integers(0, 4)) == 0
    return merged


@dataclass
class HeldModel:
    """What is held, as a list."""

    held: list[tuple[int, int, int]] = field(default_factory=list)  # xid, value, number of the record
    first_record: int = 0

    def hold(self, step: ChunkStep, value: OutOfLine, record: int) -> None:
        self.held.append((step.row.xid, value.value_id, self.first_record + record))

    def consume(self, row: OwnerRow) -> None:
        used = {(row.xid, value.value_id) for value in row.out_of_line}
        self.held = [chunk for chunk in self.held if chunk[:2] not in used]


def blocks_of(steps: Sequence[ChunkStep]) -> list[list[ChunkStep]]:
    blocks: list[list[ChunkStep]] = [[]]
    for step in steps:
        blocks[-1].append(step)
        if step.ends_block:
            blocks.append([])
    return blocks


def placed(block: Sequence[ChunkStep]) -> tuple[bytes, list[int]]:
    """Return the bytes of a block, and where each record begins in it: after other bytes, as records have."""
    linear, starts = bytearray(b"\xee" * 3), list[int]()
    for step in block:
        starts.append(len(linear))
        linear += step.packed + b"\xee" * (len(step.packed) % 5)
    return bytes(linear), starts


@given(streams())
@settings(max_examples=examples(200))
def test_every_row_is_joined_with_its_values_wherever_blocks_are_cut(steps: list[ChunkStep]) -> None:
    chunks, model = slow_chunks.HeldChunks(), HeldModel()
    for number, step in enumerate(steps):
        lengths = [described.length for described in step.row.types]
        chunks.set_layout(number, lengths, [described.align.width for described in step.row.types])
    versions = {id(step): number for number, step in enumerate(steps)}
    for block in blocks_of(steps):
        linear, starts = placed(block)
        chunks.begin(linear)
        for record, (step, at) in enumerate(zip(block, starts, strict=True)):
            row, length = step.row, len(step.packed)
            if step.value is not None:
                assert chunks.hold(row.xid, record, at, length)
                model.hold(step, step.value, record)
                continue
            expected = row.packed(is_joined=True)
            assert chunks.join(row.xid, versions[id(step)], at, length, row.is_consumed) == len(expected)
            assert bytes(chunks.joined[: chunks.size]) == expected
            assert chunks.has_values == bool(row.out_of_line)
            if row.is_consumed:
                chunks.advance()
                model.consume(row)
            assert chunks.left == len(model.held)
            assert {xid for xid in range(FIRST_XID, FIRST_XID + 3) if chunks.has(xid)} == {
                xid for xid, *_ in model.held
            }
        assert chunks.carry(linear)
        model.first_record = model.first_record + RECORDS_MAX if model.held else 0
        assert not model.held or chunks.oldest_record == model.held[0][2]
    assert chunks.take() == [record for *_, record in model.held]
    assert chunks.left == 0


@given(streams(), st.sampled_from([FIRST_XID, FIRST_XID + 1, FIRST_XID + 2]))
@settings(max_examples=examples(50))
def test_the_chunks_of_a_transaction_are_forgotten_and_no_others(steps: list[ChunkStep], xid: int) -> None:
    chunks, model = slow_chunks.HeldChunks(), HeldModel()
    block = [step for step in steps if step.value is not None]
    linear, starts = placed(block)
    chunks.begin(linear)
    for record, (step, at) in enumerate(zip(block, starts, strict=True)):
        assert step.value is not None
        chunks.hold(step.row.xid, record, at, len(step.packed))
        model.hold(step, step.value, record)
    chunks.forget(xid)
    assert not chunks.has(xid)
    assert chunks.take() == [record for owner, _, record in model.held if owner != xid]


FAR = OutOfLine(bytes(range(200)), 90, is_compressed=False, value_id=FIRST_VALUE)
OWNER = OwnerRow(FIRST_XID, (TEXT, INT8), (FAR, bytes(8)), is_consumed=True, has_short_chunks=False)


def joined_size(packed: Sequence[bytes], row: bytes, xids: Sequence[int] = (), behind: bytes = b"") -> int:
    """Hold chunks, then join the row; return the size of the result, 0 if it is refused.

    `xids`: of the chunks; `behind`: bytes of the block after the row.
    """
    chunks = slow_chunks.HeldChunks()
    chunks.set_layout(0, [described.length for described in OWNER.types], [4, 8])
    linear = b"".join([*packed, row, behind])
    chunks.begin(linear)
    at = 0
    for record, chunk in enumerate(packed):
        chunks.hold(xids[record] if xids else FIRST_XID, record, at, len(chunk))
        at += len(chunk)
    size: int = chunks.join(FIRST_XID, 0, at, len(row), True)
    assert len(chunks.joined) == len(linear)  # compiled, it does not grow
    return size


def test_chunks_that_are_not_those_of_the_pointer_are_refused() -> None:
    row, chunks = OWNER.packed(is_joined=False), FAR.chunks(is_short=False)
    assert joined_size(chunks, row) == len(OWNER.packed(is_joined=True))
    assert joined_size(chunks[:-1], row) == 0  # too few
    assert joined_size([chunks[0], chunks[2]], row) == 0  # one is missing
    assert joined_size([chunks[0], *chunks], row) == 0  # the value begins twice
    longer = OutOfLine(FAR.content + b"more", 90, is_compressed=False, value_id=FIRST_VALUE).chunks(is_short=False)
    assert joined_size(longer, row) == 0  # too many bytes


def test_chunks_of_another_value_or_transaction_leave_the_pointer_as_it_is() -> None:
    row, chunks = OWNER.packed(is_joined=False), FAR.chunks(is_short=False)
    other = OutOfLine(FAR.content, 90, is_compressed=False, value_id=FIRST_VALUE + 1).chunks(is_short=False)
    assert joined_size(other, row) == len(row)
    assert joined_size(chunks, row, [FIRST_XID + 1] * len(chunks)) == len(row)


def test_rows_that_are_damaged_are_refused() -> None:
    row, chunks = OWNER.packed(is_joined=False), FAR.chunks(is_short=False)
    assert joined_size(chunks, row[:-1]) == 0  # the last column ends behind the row
    assert joined_size(chunks, bytes([3]) + row[1:]) == 0  # more columns than the table has
    for hoff in (16, 25, 200):  # before the values, not aligned, behind the end of the row
        assert joined_size(chunks, row[:4] + bytes([hoff]) + row[5:]) == 0
    assert joined_size(chunks, row[:7] + b"\x11" + row[8:]) == 0  # the tag of no pointer to a table


@given(st.integers(5, len(OWNER.packed(is_joined=False)) - 1), st.binary(max_size=40))
def test_a_row_that_ends_early_is_refused_whatever_follows_it(length: int, behind: bytes) -> None:
    row, chunks = OWNER.packed(is_joined=False), FAR.chunks(is_short=False)
    assert joined_size(chunks, row[:length], behind=behind) == 0


def test_a_row_that_repeats_a_value_is_refused_if_the_result_has_no_space() -> None:
    for others in (0, 60, 100, 130, 150):  # bytes of the block: the result ends within a chunk, a header, padding
        row = OwnerRow(FIRST_XID, (TEXT, TEXT, TEXT), (FAR, FAR, FAR), is_consumed=False, has_short_chunks=False)
        packed = row.packed(is_joined=False)
        linear = b"".join([*FAR.chunks(is_short=False), packed]) + bytes(others)
        chunks = slow_chunks.HeldChunks()
        chunks.set_layout(0, [-1] * 3, [4] * 3)
        chunks.begin(linear)
        at = 0
        for record, chunk in enumerate(FAR.chunks(is_short=False)):
            assert chunks.hold(FIRST_XID, record, at, len(chunk))
            at += len(chunk)
        expected = row.packed(is_joined=True)
        fits = len(expected) <= len(linear)
        assert chunks.join(FIRST_XID, 0, at, len(packed), False) == (len(expected) if fits else 0)
        assert len(chunks.joined) == len(linear)


def held(chunks: Sequence[bytes], lengths: Sequence[int] = ()) -> list[bool]:
    """Return which chunks of one transaction are held. `lengths`: of their records, if they end early."""
    holder, linear, found = slow_chunks.HeldChunks(), b"".join(chunks) + bytes(8), list[bool]()
    holder.begin(linear)
    at = 0
    for record, chunk in enumerate(chunks):
        found.append(bool(holder.hold(FIRST_XID, record, at, lengths[record] if lengths else len(chunk))))
        at += len(chunk)
    return found


def test_only_the_next_chunk_of_a_value_is_held() -> None:
    chunks = FAR.chunks(is_short=False)
    assert held(chunks) == [True, True, True]
    assert held([chunks[0], chunks[2]]) == [True, False]
    assert held([chunks[0], chunks[0], chunks[1]]) == [True, True, True]  # joining refuses it
    assert held([chunks[1]]) == [False]


def test_chunks_whose_datum_is_damaged_are_not_held() -> None:
    (chunk,) = OutOfLine(b"content", 90, is_compressed=False, value_id=FIRST_VALUE).chunks(is_short=False)
    header_at = len(chunk) - len(b"content") - 4
    assert held([chunk]) == [True]
    for header in (
        b"\x02\0\0\0",
        b"\x0c\0\0\0",
        struct.pack("<I", len(b"content") + 5 << 2),
    ):  # compressed, too small, too long
        assert held([chunk[:header_at] + header + chunk[header_at + 4 :]]) == [False]
    for length in range(header_at - 7, len(chunk)):
        assert held([chunk], [length]) == [False], length
    empty = packed_chunk(FIRST_VALUE, 0, b"")
    assert held([empty]) == [True]


def test_chunks_are_held_up_to_a_number_and_carried_up_to_a_number_and_a_size() -> None:
    holder = slow_chunks.HeldChunks()
    chunk = packed_chunk(FIRST_VALUE, 0, b"c")
    holder.begin(chunk)
    for record in range(2 * RECORDS_MAX):
        assert holder.hold(FIRST_XID, record % RECORDS_MAX, 0, len(chunk))
        if record == RECORDS_MAX - 1:
            assert holder.carry(chunk)
            holder.begin(chunk)
    assert not holder.hold(FIRST_XID, 0, 0, len(chunk))
    assert not holder.carry(chunk)
    large = packed_chunk(FIRST_VALUE, 0, bytes(slow_chunks.CARRIED_BYTES_MAX // 4))
    for count, is_carried in ((4, True), (5, False)):
        holder = slow_chunks.HeldChunks()
        holder.begin(large)
        assert all(holder.hold(FIRST_XID, record, 0, len(large)) for record in range(count))
        assert bool(holder.carry(large)) is is_carried
        assert len(holder.carried) == (slow_chunks.CARRIED_BYTES_MAX if is_carried else 1)
