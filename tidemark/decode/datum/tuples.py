"""Rows as heap tuples (`htup_details.h`, `heaptuple.c`, PG 16): the location of each column's value.

A *packed tuple* is the form in which rows are passed on: the five bytes of `xl_heap_header` (u16 infomask2, u16
infomask, u8 hoff) and the tuple's bytes from offset 23 on, exactly as in WAL: null bitmap, padding, then the values
from `hoff` on.

This is the value-level path, with one object for each value; batches use the columnar path (`deforming`), which must
give the same results.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.decode.datum.varlena import (
    EXTERNAL_HEADER,
    MAX_ALIGN,
    SHORT_HEADER,
    VARLENA,
    BadDatum,
    ExternalPointer,
    datum_length,
    inline_payload,
    read_datum,
)
from tidemark.model.lsn import Oid
from tidemark.model.relation import Column, Relation
from tidemark.wal.rmgr.heap import ATTRIBUTES_MASK, HAS_NULLS, PACKED_HEADER_BYTES, TUPLE_HEADER_BYTES

TEXT_OID = Oid(25)
_HEADER = struct.Struct("<HHB")
_ARRAY_HEADER = struct.Struct("<iiIii")  # ndim, dataoffset, elemtype, dim, lower bound: an array of one dimension

Datum = bytes | str | ExternalPointer | None
"""A column's value: payload (fixed-length ones: their bytes), NULL, a pointer to a TOASTed value that is not in WAL,
or, for some missing values, the text form."""


@dataclass(frozen=True, slots=True)
class TupleLayout:
    """What is known of a relation's columns: length and alignment (where values are), missing value, dropped or not."""

    lengths: tuple[int, ...]
    aligns: tuple[int, ...]
    missing: tuple[Datum, ...]
    dropped: tuple[bool, ...]

    @classmethod
    def of(cls, relation: Relation) -> "TupleLayout":
        """Return the layout of `relation`, dropped columns included."""
        return cls.of_columns(relation.columns)

    @classmethod
    def of_columns(cls, columns: Sequence[Column]) -> "TupleLayout":
        """Return the layout of rows of `columns`, dropped ones included."""
        return cls(
            tuple(column.length for column in columns),
            tuple(column.align.width for column in columns),
            tuple(missing_value(column) for column in columns),
            tuple(column.dropped for column in columns),
        )


def missing_value(column: Column) -> Datum:
    """Return the value of `column` in rows older than it: the one element of `attmissingval`; NULL if there is none.

    NB: a mirror seeded by SQL has only the text form, marked by an element type of text.
    """
    if column.missing is None or column.dropped:
        return None
    array = inline_payload(column.missing)
    if len(array) < _ARRAY_HEADER.size:
        raise BadDatum(f"missing value of column {column.name!r} is not an array")
    dimensions, data_offset, element, count, _ = _ARRAY_HEADER.unpack_from(array)
    if dimensions != 1 or data_offset != 0 or count != 1:
        raise BadDatum(f"missing value of column {column.name!r} is not an array of one value")
    at = _ARRAY_HEADER.size
    if element == TEXT_OID and (column.type is None or column.type.oid != TEXT_OID):
        return inline_payload(array[at:]).decode("utf-8", "surrogateescape")
    # NB: an array's alignment counts from its header, which is removed here; 4 + 20 bytes are aligned for all types.
    if column.length == VARLENA:
        return inline_payload(array[at:])
    if len(array) < at + column.length:
        raise BadDatum(f"missing value of column {column.name!r} is cut off")
    return array[at : at + column.length]


def deform(packed: bytes, layout: TupleLayout) -> list[Datum]:
    """Return a value for each column of `layout` (`heap_deform_tuple`); None for a dropped one, which nothing reads."""
    values: list[Datum] = []
    for index, at, length in _walk(packed, layout):
        if at < 0 or layout.dropped[index]:
            values.append(None)
        elif layout.lengths[index] == VARLENA:
            values.append(read_datum(packed, at, length))
        else:
            values.append(packed[at : at + length])
    values.extend(layout.missing[len(values) :])
    return values


def external_pointers(packed: bytes, layout: TupleLayout) -> list[tuple[int, ExternalPointer]]:
    """Return the columns (index in the relation) whose value is stored in a TOAST table."""
    if VARLENA not in layout.lengths:
        return []
    found = []
    for index, at, length in _walk(packed, layout):
        if at >= 0 and layout.lengths[index] == VARLENA and packed[at] == EXTERNAL_HEADER:
            pointer = read_datum(packed, at, length)
            assert isinstance(pointer, ExternalPointer), index
            found.append((index, pointer))
    return found


def replace_external(packed: bytes, layout: TupleLayout, datums: dict[int, bytes]) -> bytes:
    """Return the tuple with the values of the columns in `datums` replaced (by datums: header included).

    Other values keep their bytes but not their offsets: padding is recomputed (`heap_fill_tuple`).
    """
    hoff = packed[4]
    head = PACKED_HEADER_BYTES + hoff - TUPLE_HEADER_BYTES
    parts, size = [packed[:head]], 0  # values may be large: they are copied once
    for index, at, length in _walk(packed, layout):
        if at < 0:
            continue
        datum = datums.get(index, packed[at : at + length])
        unaligned = layout.lengths[index] == VARLENA and datum[0] & SHORT_HEADER
        if not unaligned:
            parts.append(bytes(-size % layout.aligns[index]))
            size += len(parts[-1])
        parts.append(datum)
        size += len(datum)
    return b"".join(parts)


def _walk(packed: bytes, layout: TupleLayout) -> list[tuple[int, int, int]]:
    """Return (column index, offset, length) of each stored column, header included; offset -1 for NULL."""
    if len(packed) < PACKED_HEADER_BYTES:
        raise BadDatum(f"tuple of {len(packed)} bytes is cut off")
    infomask2, infomask, hoff = _HEADER.unpack_from(packed)
    stored = infomask2 & ATTRIBUTES_MASK
    bitmap = PACKED_HEADER_BYTES if infomask & HAS_NULLS else -1
    base = PACKED_HEADER_BYTES + hoff - TUPLE_HEADER_BYTES
    bitmap_bytes = (stored + 7) // 8 if infomask & HAS_NULLS else 0
    if hoff % MAX_ALIGN or hoff < TUPLE_HEADER_BYTES + bitmap_bytes or base > len(packed):
        raise BadDatum(f"tuple of {len(packed)} bytes has the invalid header size {hoff}")
    if stored > len(layout.lengths):
        raise BadDatum(f"tuple has {stored} columns, but its relation has {len(layout.lengths)}")
    locations = []
    at = base
    for index, declared, align in zip(range(stored), layout.lengths, layout.aligns, strict=False):
        if bitmap >= 0 and not packed[bitmap + index // 8] >> index % 8 & 1:
            locations.append((index, -1, 0))
            continue
        # A short or external datum follows without padding; a zero byte is padding before an aligned one.
        if declared != VARLENA or (at < len(packed) and packed[at] == 0):
            at += -(at - base) % align
        length = _varlena_length(packed, at, index) if declared == VARLENA else declared
        locations.append((index, at, length))
        at += length
        if at > len(packed):
            raise BadDatum(f"column {index + 1}: value ends at byte {at} of {len(packed)}")
    return locations


def _varlena_length(packed: bytes, at: int, index: int) -> int:
    try:
        return datum_length(packed, at)
    except BadDatum as error:
        raise BadDatum(f"column {index + 1}: {error}") from error
