"""Ranges and multiranges (`rangetypes.c`, `multirangetypes.c`, PG 16).

A range is its type's OID, the finite bounds, and a byte of flags at the very end. A multirange is its type's OID, a
count, an offset for each range but the first, a byte of flags for each, then the aligned bounds.
"""

import struct
from enum import IntFlag

from tidemark.decode.datum.varlena import PLAIN_HEADER_BYTES, VARLENA, BadDatum, datum_length, inline_payload
from tidemark.decode.types.codec import Codec, TextCodec
from tidemark.decode.types.quoting import RANGE_SPECIAL, quoted_part
from tidemark.model.relation import TypeDescription

RANGE_BOUNDS_AT = 4  # after the type's OID
MULTIRANGE_ITEMS_AT = 8  # after the OID and the count
ITEM_BYTES = 4
_COUNT = struct.Struct("<4xI")


class RangeFlag(IntFlag):
    """The byte of flags (`rangetypes.h`)."""

    EMPTY = 0x01
    LOWER_INCLUSIVE = 0x02
    UPPER_INCLUSIVE = 0x04
    LOWER_INFINITE = 0x08
    UPPER_INFINITE = 0x10


NO_LOWER = RangeFlag.EMPTY | RangeFlag.LOWER_INFINITE
NO_UPPER = RangeFlag.EMPTY | RangeFlag.UPPER_INFINITE


class _Bounds:
    """Reads consecutive bounds of ranges, and prints them."""

    def __init__(self, payload: bytes, at: int, end: int, subtype: TypeDescription, codec: Codec) -> None:
        self._payload = payload
        self._at = at
        self._end = end
        self._subtype = subtype
        self._codec = codec

    def align(self) -> None:
        """Move to the start of the next range's bounds; alignment is relative to the removed varlena header."""
        self._at += -(self._at + PLAIN_HEADER_BYTES) % self._subtype.align.width

    def range_text(self, flags: int) -> str:
        """Return the text of the range whose bounds are next."""
        if flags & RangeFlag.EMPTY:
            return "empty"
        lower = "" if flags & NO_LOWER else self._next()
        upper = "" if flags & NO_UPPER else self._next()
        opening = "[" if flags & RangeFlag.LOWER_INCLUSIVE else "("
        closing = "]" if flags & RangeFlag.UPPER_INCLUSIVE else ")"
        return f"{opening}{lower},{upper}{closing}"

    def _next(self) -> str:
        is_varlena = self._subtype.length == VARLENA
        # A short datum follows without padding; a zero byte is padding before an aligned one.
        if not is_varlena or (self._at < self._end and self._payload[self._at] == 0):
            self.align()
        length = datum_length(self._payload, self._at) if is_varlena else self._subtype.length
        raw = self._payload[self._at : self._at + length]
        self._at += length
        if self._at > self._end:
            raise BadDatum(f"bound of a range ends at byte {self._at} of {self._end}")
        text = self._codec.text(inline_payload(raw) if is_varlena else raw)
        return quoted_part(text, RANGE_SPECIAL)


class RangeCodec(TextCodec):
    """A range over any type that has a codec."""

    note = "as PostgreSQL prints it: `[1,10)`"

    def __init__(self, subtype: TypeDescription, codec: Codec) -> None:
        self.subtype = subtype
        self.subtype_codec = codec

    def text(self, payload: bytes) -> str:
        """Return the bounds, or `empty`."""
        if len(payload) <= RANGE_BOUNDS_AT:
            raise BadDatum(f"range of {len(payload)} bytes is cut off")
        end = len(payload) - 1
        bounds = _Bounds(payload, RANGE_BOUNDS_AT, end, self.subtype, self.subtype_codec)
        return bounds.range_text(payload[end])


class MultirangeCodec(TextCodec):
    """A multirange of ranges that have a codec."""

    note = "as PostgreSQL prints it: `{[1,2),[5,9)}`"

    def __init__(self, of: RangeCodec) -> None:
        self._range = of

    def text(self, payload: bytes) -> str:
        """Return the ranges in braces."""
        if len(payload) < MULTIRANGE_ITEMS_AT:
            raise BadDatum(f"multirange of {len(payload)} bytes is cut off")
        (count,) = _COUNT.unpack_from(payload)
        if count == 0:
            return "{}"
        flags_at = MULTIRANGE_ITEMS_AT + (count - 1) * ITEM_BYTES
        if flags_at + count > len(payload):
            raise BadDatum(f"multirange of {count} ranges in {len(payload)} bytes")
        of = self._range
        bounds = _Bounds(payload, flags_at + count, len(payload), of.subtype, of.subtype_codec)
        texts = []
        for flags in payload[flags_at : flags_at + count]:
            bounds.align()
            texts.append(bounds.range_text(flags))
        return "{" + ",".join(texts) + "}"
