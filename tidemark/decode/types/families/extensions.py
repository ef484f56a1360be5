"""Types of extensions that come with PostgreSQL: `hstore`, `ltree`, `cube`; `citext` is text (contrib, PG 16)."""

import struct

from tidemark.decode.datum.varlena import BadDatum
from tidemark.decode.types.codec import Dialect, TextCodec
from tidemark.decode.types.families.geometric import FLOAT_BYTES, float_texts

HSTORE_CURRENT = 0x80000000  # HS_FLAG_NEWVERSION: all values not written by 8.4
HSTORE_COUNT_MASK = 0x0FFFFFFF
ENTRY_NULL = 0x40000000
ENTRY_END_MASK = 0x3FFFFFFF
ENTRY_BYTES = 4
LEVELS_AT = 4  # of ltree: after the count, and padding to 8 bytes with the removed header
LEVEL_ALIGN = 8
CUBE_IS_POINT = 0x80000000
CUBE_DIMENSIONS_MASK = 0x7FFFFFFF
CUBE_VALUES_AT = 4
_U32 = struct.Struct("<I")
_U16 = struct.Struct("<H")


class HstoreCodec(TextCodec):
    """`hstore`: pairs, keys by length and then by their bytes."""

    note = 'as PostgreSQL prints it: `"key"=>"value", "other"=>NULL`'

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def text(self, payload: bytes) -> str:
        """Return the pairs."""
        if len(payload) < _U32.size:
            raise BadDatum(f"hstore of {len(payload)} bytes is cut off")
        (head,) = _U32.unpack_from(payload)
        count = (head & HSTORE_COUNT_MASK) * 2
        texts_at = _U32.size + count * ENTRY_BYTES
        if (head and not head & HSTORE_CURRENT) or texts_at > len(payload):
            raise BadDatum(f"hstore of {count // 2} pairs in {len(payload)} bytes, or as PostgreSQL 8.4 wrote it")
        strings: list[str] = []
        start = 0
        for entry in struct.unpack_from(f"<{count}I", payload, _U32.size):
            end = entry & ENTRY_END_MASK
            if end < start or texts_at + end > len(payload):
                raise BadDatum(f"hstore string from {start} to {end} in {len(payload)} bytes")
            strings.append("NULL" if entry & ENTRY_NULL else self._quoted(payload[texts_at + start : texts_at + end]))
            start = end
        return ", ".join(f"{key}=>{value}" for key, value in zip(strings[::2], strings[1::2], strict=True))

    def _quoted(self, raw: bytes) -> str:
        escaped = self._dialect.decode(raw).replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'


class LtreeCodec(TextCodec):
    """`ltree`: the labels of a path."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def text(self, payload: bytes) -> str:
        """Return the labels with dots between."""
        if len(payload) < LEVELS_AT:
            raise BadDatum(f"ltree of {len(payload)} bytes is cut off")
        (count,) = _U16.unpack_from(payload)
        labels: list[str] = []
        at = LEVELS_AT
        for number in range(count):
            length = _U16.unpack_from(payload, at)[0] if at + _U16.size <= len(payload) else len(payload)
            begin = at + _U16.size
            if begin + length > len(payload):
                raise BadDatum(f"label {number + 1} of an ltree is cut off")
            labels.append(self._dialect.decode(payload[begin : begin + length]))
            at = begin + length
            at += -(at - LEVELS_AT) % LEVEL_ALIGN
        return ".".join(labels)


class CubeCodec(TextCodec):
    """`cube`: one corner, or two."""

    def text(self, payload: bytes) -> str:
        """Return the corners."""
        if len(payload) < CUBE_VALUES_AT:
            raise BadDatum(f"cube of {len(payload)} bytes is cut off")
        (head,) = _U32.unpack_from(payload)
        dimensions = head & CUBE_DIMENSIONS_MASK
        corners = 1 if head & CUBE_IS_POINT else 2
        if CUBE_VALUES_AT + corners * dimensions * FLOAT_BYTES != len(payload):
            raise BadDatum(f"cube of {dimensions} dimensions in {len(payload)} bytes")
        texts = float_texts(payload, CUBE_VALUES_AT, corners * dimensions)
        parts = [texts[corner * dimensions : (corner + 1) * dimensions] for corner in range(corners)]
        return ",".join(f"({', '.join(part)})" for part in parts)
