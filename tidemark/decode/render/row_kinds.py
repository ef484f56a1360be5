"""Groups the rows of a batch by kind: rows of one kind have the same pieces in their lines."""

from json.encoder import encode_basestring
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.decode.render.column_texts import Int64Array
from tidemark.decode.render.json_columns import fixed
from tidemark.decode.types.codec import without_escapes
from tidemark.model.change import AFTER, BEFORE, BeforeKind, Op

RowFlags = npt.NDArray[np.bool_]
OPS = tuple(Op)
_OP_BITS, _KIND_BITS = 4, 2
_NUMBERS = np.zeros(256, np.int64)  # the index in `OPS`, by letter
_NUMBERS[[ord(op.value) for op in OPS]] = range(len(OPS))


class RowKind(NamedTuple):
    """The properties of one kind of rows."""

    op: Op
    before_kind: BeforeKind
    has_before: bool
    has_after: bool
    has_origin: bool
    moved: bool  # the key changed
    unchanged: bytes | None  # bitmap of the columns without a value because it did not change

    def is_unchanged(self, index: int) -> bool:
        """Return whether the column with this index did not change and is not in WAL."""
        return self.unchanged is not None and bool(self.unchanged[index >> 3] >> (index & 7) & 1)


def kinds_of(rows: pa.RecordBatch, moved: RowFlags | None) -> tuple[Int64Array, dict[int, RowKind]]:
    """Return the number of each row's kind, and the kinds by number; `moved` marks rows whose key changed."""
    codes = letters(rows) | fixed(rows.column("_before_kind"), np.int8).astype(np.int64) << _OP_BITS
    shift = _OP_BITS + _KIND_BITS
    has_origin = fixed(rows.column("_origin"), np.int32) != 0
    for flags in (there(rows.column(BEFORE)), there(rows.column(AFTER)), has_origin, moved):
        if flags is not None:
            codes |= flags.astype(np.int64) << shift
        shift += 1
    bitmaps: dict[bytes | None, int] = {None: 0}
    if rows.column("_unchanged").null_count < len(rows):
        found = rows.column("_unchanged").to_pylist()
        codes |= np.array([bitmaps.setdefault(bitmap, len(bitmaps)) for bitmap in found], np.int64) << shift
    patterns = list(bitmaps)
    present, numbers = (codes[:1], np.zeros_like(codes))
    if len(codes) and (codes != codes[0]).any():
        present, numbers = np.unique(codes, return_inverse=True)
    return numbers, {number: _kind(code, patterns) for number, code in enumerate(present.tolist())}


def _kind(code: int, patterns: list[bytes | None]) -> RowKind:
    op, code = OPS[code & (1 << _OP_BITS) - 1], code >> _OP_BITS
    before_kind, code = BeforeKind(code & (1 << _KIND_BITS) - 1), code >> _KIND_BITS
    has_before, has_after, has_origin, moved = (bool(code >> bit & 1) for bit in range(4))
    return RowKind(op, before_kind, has_before, has_after, has_origin, moved, patterns[code >> 4])


def letters(rows: pa.RecordBatch) -> Int64Array:
    """Return the index of each row's op in `OPS`."""
    column = rows.column("_op")
    _, offsets, data = column.buffers()
    begin = np.frombuffer(offsets, np.int32)[column.offset] if len(column) else 0
    return _NUMBERS[np.frombuffer(data or b"", np.uint8)[begin : begin + len(column)]]


def there(column: pa.Array) -> RowFlags:
    """Return which rows have a value."""
    bitmap = column.buffers()[0] if column.null_count else None
    if bitmap is None:
        return np.ones(len(column), np.bool_)
    packed = np.frombuffer(bitmap, np.uint8)[column.offset >> 3 : (column.offset + len(column) + 7) >> 3]
    begin = column.offset & 7
    return np.unpackbits(packed, bitorder="little")[begin : begin + len(column)].astype(np.bool_)


def json_string(name: str) -> str:
    """Return a name as a JSON string."""
    return encode_basestring(without_escapes(name))
