"""A large catalog: the cost of loading a base of it and of describing a table, in CPU seconds and memory.

The base is made from that of a real server (`tests/corpus/catalog.base`) by adding copies of its table. Each copy has
the requested number of columns, an index, a TOAST table and the types of a table. Each process loads a base when it
starts, and `cdcctl decode` does so before its first record.
"""

import argparse
import json
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from scripts.bench.measuring.machine import machine
from tidemark.decode.catalog.heap import CatalogHeap, make_tid
from tidemark.decode.catalog.history import dump_base, load_base
from tidemark.decode.catalog.layout import PG_ATTRIBUTE, PG_CLASS, PG_INDEX, PG_TYPE, CatalogLayout, data_at
from tidemark.decode.catalog.mirror import CatalogMirror
from tidemark.model.lsn import Oid

CORPUS = Path(__file__).parents[3] / "tests" / "corpus" / "catalog.base"
MODEL = b"account"
FIRST_OID = 100_000
ROWS_PER_BLOCK = 40
FIRST_BLOCK = 10_000


class TableCopies:
    """Copies of the model table's rows under other OIDs."""

    def __init__(self, mirror: CatalogMirror) -> None:
        self._heaps = {
            catalog.oid: mirror.store.heap(catalog) for catalog in (PG_CLASS, PG_ATTRIBUTE, PG_TYPE, PG_INDEX)
        }
        self._count = dict.fromkeys(self._heaps, 0)
        (self._class,) = (row for row in self._rows(PG_CLASS.oid) if MODEL + b"\0" in row)
        self._oid = _read(self._heaps[PG_CLASS.oid].layout, self._class, "oid")
        self._column = next(self._heaps[PG_ATTRIBUTE.oid].find_committed("attrelid", self._oid))
        self._type = next(self._heaps[PG_TYPE.oid].find_committed("typrelid", self._oid))
        self._index = next(self._heaps[PG_INDEX.oid].find_committed("indrelid", self._oid))

    def add(self, number: int, columns: int) -> None:
        """Add a table with an index, a TOAST table and their types."""
        table, toast, index, of_toast, row_type = (FIRST_OID + 8 * number + n for n in range(5))
        for oid, kind in ((table, b"r"), (toast, b"t"), (index, b"i"), (of_toast, b"i")):
            name = b"table_%d" % oid
            self._put(PG_CLASS.oid, self._class, oid=oid, relfilenode=oid, relname=name, relkind=kind, relnatts=columns)
        for at in range(1, columns + 1):
            self._put(PG_ATTRIBUTE.oid, self._column, attrelid=table, attnum=at, attname=b"column_%d" % at)
        for oid in (row_type, row_type + 1):
            self._put(PG_TYPE.oid, self._type, oid=oid, typrelid=table, typname=b"table_%d" % table)
        for oid, of in ((index, table), (of_toast, toast)):
            self._put(PG_INDEX.oid, self._index, indexrelid=oid, indrelid=of)

    def _rows(self, catalog: Oid) -> Iterator[bytes]:
        return (row for row in self._heaps[catalog].rows.values() if row)

    def _put(self, catalog: Oid, row: bytes, **values: int | bytes) -> None:
        heap = self._heaps[catalog]
        number = self._count[catalog]
        self._count[catalog] += 1
        heap.insert(
            make_tid(FIRST_BLOCK + number // ROWS_PER_BLOCK, number % ROWS_PER_BLOCK + 1), _with(heap, row, values)
        )


def _with(heap: CatalogHeap, row: bytes, values: dict[str, int | bytes]) -> bytes:
    packed = bytearray(row)
    for name, value in values.items():
        column = next(column for column in heap.layout.columns if column.name == name)
        at = data_at(row) + heap.layout.offsets[name]
        content = value if isinstance(value, bytes) else value.to_bytes(column.length, "little")
        packed[at : at + column.length] = content.ljust(column.length, b"\0")
    return bytes(packed)


def _read(layout: CatalogLayout, row: bytes, name: str) -> int:
    found: int = struct.unpack_from("<I", row, data_at(row) + layout.offsets[name])[0]
    return found


def make(tables: int, columns: int) -> bytes:
    """Return a base with this number of tables."""
    base = load_base(CORPUS.read_bytes(), str(CORPUS))
    (mirror,) = base.mirrors.values()
    copies = TableCopies(mirror)
    for number in range(tables):
        copies.add(number, columns)
    return dump_base(base)


def load(path: Path) -> dict[str, float | int]:
    """Load the base in this process; return the cost."""
    before_kib = _peak_kib()
    data = path.read_bytes()
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    base = load_base(data, str(path))
    cpu_s, wall_s = time.process_time() - began_cpu_s, time.perf_counter() - began_s
    (mirror,) = base.mirrors.values()
    began_cpu_s = time.process_time()
    described = mirror.relation(Oid(FIRST_OID))
    first_cpu_s = time.process_time() - began_cpu_s
    assert described is not None
    peak_kib = _peak_kib()
    return {
        "load_cpu_s": round(cpu_s, 3),
        "load_wall_s": round(wall_s, 3),
        "first_table_cpu_s": round(first_cpu_s, 3),
        "peak_mb": peak_kib // 1024,
        "of_the_base_mb": (peak_kib - before_kib) // 1024,
        "rows": sum(len(heap.rows) for heap in mirror.store.heaps.values()),
    }


def _peak_kib() -> int:
    """Return the peak memory of this process. NB: the peak of `getrusage` starts with the parent's."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1])


def main() -> None:
    """Make the base, and load it in separate processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=10_000)
    parser.add_argument("--columns", type=int, default=10, help="of each table")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)  # one round, in a separate process
    given = parser.parse_args()
    if given.load is not None:
        print(json.dumps(load(given.load)))
        return
    print(json.dumps({**machine(), "tables": given.tables, "columns": given.columns}))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "base"
        path.write_bytes(make(given.tables, given.columns))
        print(json.dumps({"base_mb": path.stat().st_size >> 20}))
        for _ in range(given.rounds):
            command = [sys.executable, "-m", "scripts.bench.decoding.catalog_bench", "--load", str(path)]
            print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


if __name__ == "__main__":
    main()
