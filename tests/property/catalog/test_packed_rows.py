"""Packed rows compared with a dictionary: the same mapping, from any base; and the memory of a row."""

import tracemalloc
from array import array
from collections.abc import Callable, Iterable
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from tests.support.forged.catalog_rows import enum_row
from tests.support.oracles.twins import interpreted
from tidemark.decode.catalog import run_index
from tidemark.decode.catalog.layout import data_at
from tidemark.decode.catalog.packed_rows import PackedRows, Tid

TIDS = st.integers(0, 12).map(Tid)
ROWS = st.binary(max_size=4)
TYPE_AT = 4  # pg_enum.enumtypid
KEYS = st.integers(0, (1 << 32) - 1) | st.integers(0, 3)
slow_index = interpreted("tidemark.decode.catalog.run_index")
CHANGES = st.lists(st.tuples(TIDS, ROWS | st.none()), max_size=20)  # None: the row is removed


@given(begun=st.dictionaries(TIDS, ROWS), changes=CHANGES, order=st.sampled_from([list, sorted]), packs=st.booleans())
def test_packed_rows_are_the_mapping_that_a_dictionary_is(
    begun: dict[Tid, bytes],
    changes: list[tuple[Tid, bytes | None]],
    order: Callable[[Iterable[tuple[Tid, bytes]]], list[tuple[Tid, bytes]]],
    *,
    packs: bool,
) -> None:
    model = dict(order(begun.items()))
    rows = PackedRows(array("Q", model), array("H", map(len, model.values())), b"".join(model.values()))
    assert rows == model
    for tid, packed in changes:
        if packed is None:
            assert rows.pop(tid, None) == model.pop(tid, None)
        else:
            rows[tid] = model[tid] = packed
        assert len(rows) == len(model)
        assert dict(rows.pairs()) == dict(rows.items()) == model
        assert [rows.get(Tid(at)) for at in range(13)] == [model.get(Tid(at)) for at in range(13)]
        assert [at in rows for at in range(13)] == [at in model for at in range(13)]
        if packs:
            assert PackedRows(*rows.pack()) == rows == model


def test_a_row_of_a_base_is_no_object_and_uses_sixteen_bytes_beside_its_content() -> None:
    count, size = 50_000, 100
    tids, lengths, run = array("Q", range(count)), array("H", [size] * count), bytes(count * size)
    tracemalloc.start()
    try:
        rows = PackedRows(tids, lengths, run)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(rows) == count
    assert held_bytes < 17 * count


@given(st.lists(KEYS | st.none() | st.binary(max_size=8), max_size=40), KEYS, st.sampled_from([1, 2, 64]))
def test_rows_are_found_by_a_column_whatever_a_run_contains(
    rows: list[int | bytes | None], key: int, slots: int
) -> None:
    packed = [b"" if row is None else row if isinstance(row, bytes) else enum_row(1, row) for row in rows]
    run, ends = b"".join(packed), array("Q", accumulate(map(len, packed)))
    wanted = [row for row, content in enumerate(rows) if content == key]
    for index in (run_index, slow_index):
        heads, following = array("I", bytes(4 * slots)), array("I", bytes(4 * len(rows)))
        index.chain_rows(run, ends, TYPE_AT, heads, following)
        found = index.rows_with(run, ends, TYPE_AT, heads, following, key)
        assert [row for row in found if not isinstance(rows[row], bytes)] == wanted
        assert all(int.from_bytes(packed[row][data_at(packed[row]) + TYPE_AT :][:4], "little") == key for row in found)


def test_an_index_of_a_base_uses_eight_bytes_a_row() -> None:
    count = 50_000
    row = enum_row(1, 2)
    rows = PackedRows(array("Q", range(count)), array("H", [len(row)] * count), row * count)
    tracemalloc.start()
    try:
        index = rows.index(TYPE_AT)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(rows.of_run(index, 2)) == count
    assert held_bytes < 9 * count
