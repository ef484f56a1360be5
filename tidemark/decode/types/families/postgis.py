"""PostGIS's `geometry` and `geography` (`gserialized1.c`, `gserialized2.c`, `lwout_wkb.c`, PostGIS 3.3).

Stored: 21 bits of SRID, a byte of flags, optionally a word of more flags, optionally a bounding box of floats, then the
geometry: its type, a count, and points or parts. Printed: EWKB in hexadecimal. Both have the same items in the same
order, parts after the geometry that contains them, so one pass converts one into the other.
"""

import struct

import pyarrow as pa

from tidemark.decode.datum.varlena import BadDatum
from tidemark.decode.types.codec import ArrowValue, Codec, ColumnKind

HAS_Z, HAS_M, HAS_BOX, IS_GEODETIC, IS_EXTENDED, IS_VERSION_2 = 0x01, 0x02, 0x04, 0x08, 0x10, 0x40
HEAD_BYTES = 4  # SRID, flags
EXTENDED_BYTES = 8
FLOAT_BYTES = 4
DOUBLE_BYTES = 8
GEODETIC_BOX_BYTES = 6 * FLOAT_BYTES
SRID_BITS = 21
POINT, LINE, POLYGON, CIRCULAR_STRING, TRIANGLE = 1, 2, 3, 8, 14
WHOLES = frozenset({4, 5, 6, 7, 9, 10, 11, 12, 13, 15})  # types that consist of other geometries
WKB_TYPES = {13: 15, TRIANGLE: 17, 15: 16}  # types that have another number in WKB
WKB_LITTLE_ENDIAN = b"\1"
WKB_Z, WKB_M, WKB_SRID = 0x80000000, 0x40000000, 0x20000000
_U32 = struct.Struct("<I")
_NAN = struct.pack("<d", float("nan"))  # each coordinate of an empty point


class _Walk:
    """Reads the stored form from start to end."""

    def __init__(self, payload: bytes, at: int) -> None:
        self._payload = payload
        self._at = at

    def number(self) -> int:
        """Return the next u32."""
        return int(_U32.unpack(self.bytes(_U32.size))[0])

    def bytes(self, count: int) -> bytes:
        """Return the next bytes."""
        if self._at + count > len(self._payload):
            raise BadDatum(f"geometry of {len(self._payload)} bytes ends before byte {self._at + count}")
        self._at += count
        return self._payload[self._at - count : self._at]


def ewkb(payload: bytes) -> bytes:
    """Return the extended well-known binary form of a stored geometry."""
    if len(payload) < HEAD_BYTES:
        raise BadDatum(f"geometry of {len(payload)} bytes is cut off")
    flags = payload[3]
    dimensions = 2 + bool(flags & HAS_Z) + bool(flags & HAS_M)
    srid = int.from_bytes(payload[:3], "big") & (1 << SRID_BITS) - 1
    walk = _Walk(payload, HEAD_BYTES + _bytes_before_geometry(flags, dimensions))
    marks = WKB_Z * bool(flags & HAS_Z) | WKB_M * bool(flags & HAS_M)
    out: list[bytes] = []
    pending = 1  # geometries. NB: the parts of a geometry follow it, so no stack is needed
    while pending:
        kind = walk.number()
        has_srid = srid and not out
        marked = WKB_TYPES.get(kind, kind) | marks | (WKB_SRID if has_srid else 0)
        out += [WKB_LITTLE_ENDIAN, _U32.pack(marked)]
        if has_srid:
            out.append(struct.pack("<i", srid - (srid >> SRID_BITS - 1 << SRID_BITS)))
        parts = _copy(walk, kind, dimensions * DOUBLE_BYTES, out)
        pending += parts - 1
    return b"".join(out)


def _bytes_before_geometry(flags: int, dimensions: int) -> int:
    size = EXTENDED_BYTES if flags & IS_VERSION_2 and flags & IS_EXTENDED else 0
    if flags & HAS_BOX:
        size += GEODETIC_BOX_BYTES if flags & IS_GEODETIC else 2 * dimensions * FLOAT_BYTES
    return size


def _copy(walk: _Walk, kind: int, point_bytes: int, out: list[bytes]) -> int:
    """Copy the contents after a geometry's type; return how many geometries follow as its parts."""
    count = walk.number()
    if kind == POINT:
        out.append(walk.bytes(count * point_bytes) if count else _NAN * (point_bytes // DOUBLE_BYTES))
    elif kind in (LINE, CIRCULAR_STRING):
        out += [_U32.pack(count), walk.bytes(count * point_bytes)]
    elif kind == TRIANGLE:
        rings = [_U32.pack(1), _U32.pack(count)] if count else [_U32.pack(0)]
        out += [*rings, walk.bytes(count * point_bytes)]
    elif kind == POLYGON:
        lengths = struct.unpack(f"<{count}I", walk.bytes(count * _U32.size))
        walk.bytes(count % 2 * _U32.size)  # padding
        out.append(_U32.pack(count))
        for length in lengths:
            out += [_U32.pack(length), walk.bytes(length * point_bytes)]
    elif kind in WHOLES:
        out.append(_U32.pack(count))
        return count
    else:
        raise BadDatum(f"geometry of type {kind}")
    return 0


class GeometryCodec(Codec):
    """`geometry` and `geography`; EWKB in Arrow."""

    arrow_type = pa.binary()
    kind = ColumnKind.OBJECTS
    note = "EWKB; the text form is the same in hexadecimal"

    def text(self, payload: bytes) -> str:
        """Return EWKB in hexadecimal."""
        return ewkb(payload).hex().upper()

    def arrow_value(self, payload: bytes) -> ArrowValue:
        """Return EWKB."""
        return ewkb(payload)

    def parse_text(self, text: str) -> ArrowValue:
        """Return EWKB."""
        return bytes.fromhex(text)
