"""Decoding by blocks equals decoding record by record, with any block boundaries; and the twins agree."""

import struct
from array import array
from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import pairwise
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.forged.forged_records import Wal, block_of, external, packed_chunk, reported
from tests.support.forged.forged_sessions import (
    ACCOUNT,
    DDL_STEPS,
    DDL_VERBS,
    HEAP,
    LEDGER,
    STEPS,
    TOAST,
    TOAST_TABLE,
    Sessions,
    new_wal,
    played,
)
from tests.support.forged.groups import DATABASE, relation
from tests.support.oracles.twins import interpreted
from tidemark.decode.arrow.batches import RowSpans
from tidemark.decode.datum import lookup, row_entries
from tidemark.decode.datum.varlena import ExternalPointer
from tidemark.decode.transactions import extract, file_versions, pending_rows, xid_states
from tidemark.decode.transactions.file_versions import FIRST_VERSION, HAS_CHUNKS, NO_ROWS
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction, RowRun
from tidemark.model.lsn import Lsn, Oid
from tidemark.model.relation import RelFileLocator
from tidemark.wal.page import RecordBlock

slow_lookup = interpreted("tidemark.decode.datum.lookup")
slow_pending = interpreted("tidemark.decode.transactions.pending_rows")
slow_children = interpreted("tidemark.decode.transactions.pending_children")
slow_files = interpreted(
    "tidemark.decode.transactions.file_versions", stand_in={"tidemark.decode.datum.lookup": slow_lookup}
)
slow_parts = interpreted("tidemark.decode.transactions.record_parts")
slow_speculative = interpreted("tidemark.decode.transactions.speculative_rows")
slow_catalog_rows = interpreted("tidemark.decode.transactions.catalog_rows")
slow_chunks = interpreted(
    "tidemark.decode.transactions.held_chunks", stand_in={"tidemark.decode.datum.lookup": slow_lookup}
)
slow_states = interpreted(
    "tidemark.decode.transactions.xid_states",
    stand_in={
        "tidemark.decode.datum.lookup": slow_lookup,
        "tidemark.decode.transactions.pending_children": slow_children,
    },
)
slow_extract = interpreted(
    "tidemark.decode.transactions.extract",
    stand_in={
        "tidemark.decode.transactions.pending_rows": slow_pending,
        "tidemark.decode.transactions.file_versions": slow_files,
        "tidemark.decode.transactions.catalog_rows": slow_catalog_rows,
        "tidemark.decode.transactions.held_chunks": slow_chunks,
        "tidemark.decode.transactions.xid_states": slow_states,
        "tidemark.decode.transactions.record_parts": slow_parts,
        "tidemark.decode.transactions.speculative_rows": slow_speculative,
    },
)
slow_entries = interpreted("tidemark.decode.datum.row_entries")


def summary(out: list[object]) -> list[object]:
    return [
        [replace(decoded.end, first_lsn=Lsn(0)), *reported(decoded)]
        if isinstance(decoded, CommittedTransaction)
        else decoded
        for decoded in out
    ]


def first_lsn(transaction: CommittedTransaction) -> int:
    first = next(transaction.items())
    return next(first.rows()).lsn if isinstance(first, RowRun) else first.lsn


def check_restarts(committed: list[CommittedTransaction]) -> None:
    """Check that reading from a pointer's restart LSN misses nothing that commits after the pointer."""
    later = [first_lsn(transaction) for transaction in committed]
    for transaction in committed:
        own = later.pop(0)
        assert transaction.restart_lsn <= min([transaction.end.end_lsn, *later])
        assert transaction.inner_restart_lsn <= min(own, transaction.restart_lsn)


@given(STEPS | DDL_STEPS, st.data())
@settings(max_examples=examples(300))
def test_blocks_yield_the_same_as_records_wherever_they_are_cut(
    steps: list[tuple[str, int]], data: st.DataObject
) -> None:
    by_record = played(steps)
    raws = by_record.raws
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raws)), max_size=5)))
    by_block = new_wal(by_record).decoder
    out: list[object] = []
    for begin, end in pairwise([0, *cuts, len(raws)]):
        out.extend(by_block.decode_block(block_of(raws[begin:end])))
    assert summary(out) == summary(by_record.out)
    check_restarts([decoded for decoded in out if isinstance(decoded, CommittedTransaction)])
    if raws:
        assert (by_block.last_lsn, by_block.decoded_lsn) == raws[-1][:2]
    assert by_block.restart_lsn >= by_record.decoder.restart_lsn


def on_one_table(*verbs: str) -> list[tuple[str, int]]:
    """Return the steps of one session on the table of odd numbers."""
    return [step for verb in verbs for step in ((verb, 0), ("lock", 0))][:-1]


@pytest.mark.parametrize(
    ("steps", "rows"),
    [
        (on_one_table("alter", "insert", "alter", "insert", "commit"), 2),
        (on_one_table("savepoint", "alter", "insert", "rollback", "insert", "commit"), 1),
        (  # another transaction changes a table that the first one writes to and has not changed
            [("alter", 0), ("insert", 0), ("lock", 1), ("alter", 1), ("commit", 1), ("insert", 0), ("commit", 0)],
            2,
        ),
        ([*[("rewrite", 0)] * 6, ("end_rewrite", 0), *[("insert", 0)] * 4, ("commit", 0)], 16),
        ([*[("refresh", 0)] * 6, ("insert", 0), ("commit", 0)], 1),
        ([("guess", 0), ("resolve", 0), ("guess", 0), ("resolve", 0), ("guess", 0), ("commit", 0)], 2),
        (  # the second row of a file is the kernel's; its session aborts, another one ends meanwhile
            [("insert", 0), ("insert", 0), ("guess", 0), ("insert", 1), ("commit", 1), ("abort", 0)],
            1,
        ),
        ([*[("insert", 0)] * 2, ("guess", 0), ("guess", 1), ("resolve", 0), ("commit", 0)], 3),
    ],
)
def test_one_block_yields_the_same_as_records(steps: list[tuple[str, int]], rows: int) -> None:
    by_record = played(steps)
    by_block = new_wal(by_record).decoder
    out: list[object] = list(by_block.decode_block(block_of(by_record.raws)))
    assert summary(out) == summary(by_record.out)
    last = out[-1]
    assert isinstance(last, CommittedTransaction)
    assert sum(isinstance(item, str) for item in reported(last)) == rows


@given(STEPS, st.data())
@settings(max_examples=examples(150))
def test_records_omitted_from_blocks_have_no_effect(steps: list[tuple[str, int]], data: st.DataObject) -> None:
    by_record = played(steps)
    raws = by_record.raws
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raws)), max_size=5)))
    by_block = new_wal(by_record).decoder
    out: list[object] = []
    for begin, end in pairwise([0, *cuts, len(raws)]):
        kept: list[tuple[Lsn, Lsn, bytes]] = []
        for reported_raw in raws[begin:end]:
            raw = reported_raw[2]
            if not kept or raw[17] not in by_block.quiet or raw[4:8] not in (bytes(4), kept[-1][2][4:8]):
                kept.append(reported_raw)
        block = block_of(kept)
        if kept:
            block.last_lsn, block.end_lsn = raws[end - 1][:2]
        out.extend(by_block.decode_block(block))
    assert summary(out) == summary(by_record.out)
    if raws:
        assert (by_block.last_lsn, by_block.decoded_lsn) == raws[-1][:2]


CATALOG_FILES = [None, *(RelFileLocator(Oid(1663), Oid(DATABASE), Oid(file)) for file in (ACCOUNT, LEDGER, HEAP))]


class Extraction:
    """An extractor, compiled or not, with its buffers."""

    def __init__(self, extractor: ModuleType, holder: ModuleType, files: ModuleType, complete_from: int) -> None:
        self.entries, self.arranged = (bytearray(pending_rows.ROWS_MAX * row_entries.ENTRY_BYTES) for _ in range(2))
        self.runs, self.ends, self.slots = (
            [array("q", bytes(8 * length)) for _ in range(count)]
            for count, length in (
                (pending_rows.RUN_COLUMNS, pending_rows.ROWS_MAX),
                (pending_rows.END_COLUMNS, pending_rows.ROWS_MAX),
                (pending_rows.SLOT_COLUMNS, pending_rows.SLOTS_MAX),
            )
        )
        self.pending = holder.PendingRows(self.entries, self.arranged, self.runs, self.ends, self.slots)
        self.files = files.FileVersions()
        self.extractor = extractor.RowExtractor(0x1C, complete_from, self.pending, self.files)

    def know(
        self, files: set[int], xids: dict[int, int], unselected: Collection[int] = (), chunk_state: int = NO_ROWS
    ) -> None:
        for number, file in enumerate(sorted(files)):
            has_rows = chunk_state if file == TOAST else FIRST_VERSION + number
            if file in unselected:
                has_rows = xid_states.NONE - number
            self.files.set(1663, DATABASE, file, has_rows)
        for xid, state in xids.items():
            self.extractor.set_xid_state(xid, state)

    def all_of(self, *blocks: RecordBlock) -> list[object]:
        """Return everything that is extracted from blocks, call by call; the records that end a call are skipped."""
        size = 3 * sum(len(block.linear) for block in blocks)
        tuples, arranged = bytearray(size), bytearray(size)
        return [each for block in blocks for each in self._all_of(block, tuples, arranged)]

    def _all_of(self, block: RecordBlock, tuples: bytearray, arranged: bytearray) -> list[object]:
        columns = (block.lsns, block.ends, block.xids, block.rmgrs, block.infos, block.offsets, block.lengths)
        found: list[object] = []
        at = 0
        while at < len(block):
            at = self.extractor.extract(block.linear, tuples, arranged, *columns, at, len(block), pending_rows.NONE)
            if at % 7 == 6:
                found.append(self.extractor.chunks.take())
            found.append([at, self.extractor.is_full, self.extractor.other_end, self.extractor.next_xid])
            if at % 7 < 5:
                found.append(self.extractor.catalog_rows.take(block.linear, CATALOG_FILES))
            found += self._taken(arranged if self.pending.is_arranged else tuples)
            if at % 2:
                self.pending.sort_rows()
            found += [self.pending.first_lsn(), self.pending.pending_count, self.pending.head, self.pending.tail]
            found += [bytes(self.entries[: self.pending.row_count * row_entries.ENTRY_BYTES]), self._pending_columns()]
            if at % 3 == 2:
                found.append(self.extractor.remove_child(block.xids[at // 3]))
            if at % 5 == 4:
                self.extractor.release(block.xids[at // 2])
            at += self.extractor.other_end == pending_rows.NONE
        found.append(self.extractor.catalog_rows.take(block.linear, CATALOG_FILES))
        chunks = self.extractor.chunks
        found += [chunks.carry(block.linear), chunks.left, chunks.carried_size, chunks.oldest_record]
        return found

    def _taken(self, tuples: bytearray) -> list[object]:
        ends, runs = self.pending.end_count, self.pending.run_count
        rows, size = (
            self.pending.others_at + self.pending.other_rows,
            self.pending.others_byte_at + self.pending.other_bytes,
        )
        entries = self.arranged if self.pending.is_arranged else self.entries
        return [
            bytes(entries[: rows * row_entries.ENTRY_BYTES]),
            bytes(tuples[:size]),
            [list(column[:ends]) for column in self.ends],
            [list(column[:runs]) for column in self.runs],
        ]

    def _pending_columns(self) -> list[list[int]]:
        live = [at % pending_rows.SLOTS_MAX for at in range(self.pending.head, self.pending.tail) if self.slots[0][at]]
        return [[column[slot] for slot in live] for column in self.slots]


def fast(complete_from: int = -1) -> Extraction:
    return Extraction(extract, pending_rows, file_versions, complete_from)


def slow(complete_from: int = -1) -> Extraction:
    return Extraction(slow_extract, slow_pending, slow_files, complete_from)


def test_other_records_of_ddl_are_skipped_once_its_transaction_is_known() -> None:
    stream = new_wal()
    sessions = Sessions(stream)
    for verb in (*DDL_VERBS, "index"):
        sessions.play(verb, 0)
    block = block_of(stream.raws)
    for states in ({801: xid_states.KNOWN}, {801: xid_states.ORDINARY}):
        extraction = fast()
        extraction.know(set(), states)
        assert extraction.all_of(block)[0] == [4, False, pending_rows.NONE, 0]
    assert fast().all_of(block)[0] == [0, False, pending_rows.NONE, 0]


@given(STEPS, st.sets(st.sampled_from([ACCOUNT, LEDGER, TOAST])), st.data())
@settings(max_examples=examples(150))
def test_twins_extract_the_same_rows_from_valid_and_damaged_records(
    steps: list[tuple[str, int]], files: set[int], data: st.DataObject
) -> None:
    raws = played(steps).raws
    cut = data.draw(st.integers(0, len(raws)))
    blocks = block_of(raws[:cut]), block_of(raws[cut:])
    for block in blocks:
        for at in data.draw(st.lists(st.integers(0, max(0, len(block.linear) - 1)), max_size=3)):
            if block.linear:
                block.linear[at] = data.draw(st.integers(0, 255))
    some_states = st.integers(0, 2) | st.sampled_from([xid_states.SEES_OWN * 801, xid_states.SEES_OWN * 802])
    states = data.draw(st.dictionaries(st.integers(801, 830), some_states, max_size=20))
    own_keys = st.tuples(st.sampled_from([801, 802]), st.sampled_from([ACCOUNT, LEDGER, TOAST, HEAP]))
    own_files = data.draw(st.dictionaries(own_keys, st.integers(-9, 9), max_size=8))
    complete_from = data.draw(st.sampled_from([-1, 803, (1 << 31) + 802]))
    twins = fast(complete_from), slow(complete_from)
    unselected = data.draw(st.sets(st.sampled_from([ACCOUNT, LEDGER])))
    chunk_state = data.draw(st.sampled_from([NO_ROWS, HAS_CHUNKS, HAS_CHUNKS]))
    layouts = data.draw(st.sets(st.integers(0, 3), min_size=2))
    catalogs = data.draw(st.sets(st.sampled_from([ACCOUNT, LEDGER, HEAP])))
    for twin in twins:
        twin.know(files, states, unselected, chunk_state)
        for number, file in enumerate(sorted(catalogs)):
            twin.files.set_catalog(1663, DATABASE, file, number + 1)
        for number in layouts:
            twin.extractor.chunks.set_layout(number, (8, -1), (8, 4))
        for (top, file), state in own_files.items():
            twin.files.set_own(top, 1663, DATABASE, file, state)
    assert twins[0].all_of(*blocks) == twins[1].all_of(*blocks)


@given(STEPS, st.data())
@settings(max_examples=examples(50))
def test_twins_hold_the_same_rows_of_catalogs(steps: list[tuple[str, int]], data: st.DataObject) -> None:
    raws = played(steps).raws
    block = block_of(raws)
    for at in data.draw(st.lists(st.integers(0, max(0, len(block.linear) - 1)), max_size=3)):
        if block.linear:
            block.linear[at] = data.draw(st.integers(0, 255))
    twins = fast(), slow()
    for twin in twins:
        twin.know(set(), {xid: xid_states.SEES_OWN * xid for xid in range(801, 831)})
        for number, file in enumerate((ACCOUNT, LEDGER, HEAP)):
            twin.files.set_catalog(1663, DATABASE, file, number + 1)
    assert twins[0].all_of(block) == twins[1].all_of(block)


@given(st.dictionaries(st.integers(1, 2**64 - 1), st.integers(-(2**62), 2**62), max_size=400))
@settings(max_examples=examples(50))
def test_twins_keep_the_same_table_of_relations(values: dict[int, int]) -> None:
    tables = [lookup.IntegerMap(), slow_lookup.IntegerMap()]
    for table in tables:
        for key, value in values.items():
            table.put(key, value)
            if value % 3 == 0:
                table.put(key, 0)
    assert tables[0].used == tables[1].used
    assert tables[0].slots == tables[1].slots
    expected = {key: value for key, value in values.items() if value % 3}
    assert {key: tables[1].get(key) for key in values if tables[1].get(key)} == expected


ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.none() | st.binary(max_size=12), st.none() | st.binary(max_size=12)), max_size=30
)


def entries_of(rows: list[tuple[int, bytes | None, bytes | None]]) -> bytes:
    return b"".join(
        row_entries.ENTRY.pack(
            105,
            index % 3,
            index * 2200,
            number,
            700,
            row_entries.ABSENT if new is None else len(new),
            row_entries.ABSENT if old is None else len(old),
            index,
        )
        for index, (number, new, old) in enumerate(rows)
    )


@given(ROWS, st.data())
@settings(max_examples=examples(100))
def test_twins_arrange_the_same_columns(
    rows: list[tuple[int, bytes | None, bytes | None]], data: st.DataObject
) -> None:
    entries = entries_of(rows)
    tuples = b"".join((old or b"") + (new or b"") for _, new, old in rows)
    cuts = sorted({*data.draw(st.lists(st.integers(0, len(rows)), max_size=3)), len(rows)})
    runs = [cuts, [cut * 7 for cut in cuts]]
    left_out = data.draw(st.integers(0, 2))
    assert arranged(row_entries, entries, tuples, runs, left_out) == arranged(
        slow_entries, entries, tuples, runs, left_out
    )


@given(st.lists(ROWS, min_size=1, max_size=4), st.sets(st.integers(0, 2)))
@settings(max_examples=examples(50))
def test_twins_sort_group_after_group_into_the_same_columns(
    groups: list[list[tuple[int, bytes | None, bytes | None]]], left_out: set[int]
) -> None:
    assert sorted_rows(row_entries, groups, left_out) == sorted_rows(slow_entries, groups, left_out)


def sorted_rows(
    module: ModuleType, groups: list[list[tuple[int, bytes | None, bytes | None]]], left_out: set[int]
) -> list[object]:
    columns = RowSpans(bytearray(), max(map(len, groups)))
    sorter = module.RowSorter(columns)
    made: list[object] = []
    for versions, rows in enumerate(groups, start=3):  # new versions get the next numbers
        entries = entries_of(rows)
        tuples = sum(len(old or b"") + len(new or b"") for _, new, old in rows)
        asked = []
        while (number := sorter.count(entries, versions)) != module.ALL_KNOWN:
            asked.append(number)
            sorter.select(number, number not in left_out)
        runs = [array("q", [len(rows)]), *(array(code, [7]) for code in "qiqqq")]
        made += [asked, sorter.sort(entries, tuples, 1, *runs)]
        made += [list(getattr(columns, name)) for name in columns.__slots__ if name != "data"]
        assert sorter.count(entries, versions) == module.ALL_KNOWN
        assert sorter.sort(entries, tuples + 1, 0, *runs) is None or not rows
    return made


def arranged(module: ModuleType, entries: bytes, tuples: bytes, runs: list[list[int]], left_out: int) -> list[object]:
    row_counts = array("q", [0] * 3)
    count = module.tally(entries, row_counts)
    next_row = array("q", [0] * 3)
    row = 0
    for number in range(3):
        next_row[number] = -1 if number == left_out else row
        row += 0 if number == left_out else row_counts[number]
    cuts = [array("q", values) for values in runs]
    timelines, *reported = [array(code, range(number, len(runs[0]) + number)) for number, code in enumerate("iqqq")]
    letters = [bytearray(row), bytearray(row)]
    columns = [array(code, [0] * row) for code in "iqqiqqqqqqq"]
    moved = module.arrange(entries, len(tuples), *cuts, timelines, *reported, next_row, *letters, *columns)
    reported_runs = [array("q", range(number, number + len(cuts[0]))) for number in range(4)]
    put = [array(code, [7] * (len(cuts[0]) + 2)) for code in "qqiqqq"]
    module.put_runs(*reported_runs, 0, len(cuts[0]), 1 << 33, 3, 1, *put)
    total = module.tuple_bytes(entries, 0, count)
    within = [module.rows_within(entries, 0, count, space) for space in (0, 1, total // 2, total + 1)]
    selected = [module.has_selected(entries, row, count) for row in range(count + 1)]
    return [count, moved, total, within, row_counts, next_row, *letters, *columns, *put, selected]


@pytest.mark.parametrize("extraction", [fast, slow])
def test_a_row_that_repeats_a_value_leaves_space_for_the_rows_after_it(extraction: Callable[[], Extraction]) -> None:
    note = relation().columns[1]
    stream = Wal(replace(relation(), columns=(note, note)), TOAST_TABLE)
    stream.insert(801, TOAST, packed_chunk(77, 0, bytes(1000)))
    pointer = external(ExternalPointer(1004, 1000, 0, Oid(77), Oid(TOAST)))
    stream.insert(801, ACCOUNT, struct.pack("<HHBx", 2, 4, 24) + pointer * 2)
    stream.insert(801, ACCOUNT, struct.pack("<HHBxI", 2, 2, 24, 1004 << 2) + bytes(1000) + b"\x03")
    block = block_of(stream.raws)
    extractor = extraction()
    extractor.know({ACCOUNT, TOAST}, {}, chunk_state=HAS_CHUNKS)
    extractor.extractor.chunks.set_layout(0, (-1, -1), (4, 4))
    tuples, arranged = bytearray(len(block.linear)), bytearray(len(block.linear))
    columns = (block.lsns, block.ends, block.xids, block.rmgrs, block.infos, block.offsets, block.lengths)
    at = extractor.extractor.extract(block.linear, tuples, arranged, *columns, 0, 3, pending_rows.NONE)
    assert (at, extractor.pending.row_count, len(tuples)) == (1, 0, len(block.linear))
