"""Packed rows beside a dictionary: the same mapping, whatever came from a base; and what a row takes."""

import tracemalloc
from array import array
from collections.abc import Callable, Iterable

from hypothesis import given
from hypothesis import strategies as st

from tidemark.decode.catalog.packed_rows import PackedRows, Tid

TIDS = st.integers(0, 12).map(Tid)
ROWS = st.binary(max_size=4)
CHANGES = st.lists(st.tuples(TIDS, ROWS | st.none()), max_size=20)  # None: the row goes


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


def test_a_row_of_a_base_is_no_object_and_takes_sixteen_bytes_beside_its_own() -> None:
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
