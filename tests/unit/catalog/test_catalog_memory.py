"""The memory of a large catalog for each table: its rows while no table is written, and a description once one is."""

import tracemalloc

from scripts.bench.decoding.catalog_bench import FIRST_OID, make
from tidemark.decode.catalog.history import load_base
from tidemark.model.lsn import Oid

TABLES, COLUMNS = 400, 20
PLACE_BYTES = 16  # of a row: its begin and its end


def test_unpacking_a_base_needs_little_more_memory_than_its_stored_rows() -> None:
    data = make(TABLES, COLUMNS)
    tracemalloc.start()
    try:
        base = load_base(data, "base")
        held_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    (mirror,) = base.mirrors.values()
    rows = [packed for heap in mirror.store.heaps.values() for packed in heap.rows.values()]
    assert len(rows) > TABLES * COLUMNS
    assert held_bytes < (sum(map(len, rows)) + PLACE_BYTES * len(rows)) * 1.2
    assert peak_bytes < held_bytes * 1.3


def test_a_described_table_uses_little_memory_if_others_are_like_it() -> None:
    (mirror,) = load_base(make(TABLES, COLUMNS), "base").mirrors.values()
    assert mirror.relation(Oid(FIRST_OID)) is not None  # builds the indexes
    tracemalloc.start()
    try:
        described = [mirror.relation(Oid(FIRST_OID + 8 * number)) for number in range(1, TABLES)]
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    names = {column.name for relation in described if relation is not None for column in relation.columns}
    assert len(names) == COLUMNS
    assert held_bytes < 1200 * len(described)  # 4 kB if columns were not shared


def test_indexes_of_a_catalog_use_less_than_a_tenth_of_its_rows() -> None:
    (mirror,) = load_base(make(TABLES, COLUMNS), "base").mirrors.values()
    row_bytes = sum(len(packed) for heap in mirror.store.heaps.values() for packed in heap.rows.values())
    tracemalloc.start()
    try:
        assert mirror.relation(Oid(FIRST_OID)) is not None
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < row_bytes / 10
