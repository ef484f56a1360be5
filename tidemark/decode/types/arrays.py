"""Arrays (`array.h`, `array_out`, PG 16): dimensions, lower bounds, then the elements, aligned as their type requires.

Arrow has one list type for a column, while a PostgreSQL column may contain arrays of any dimensions and bounds: lists
have the elements in storage order, flat; only the text form has bounds and dimensions.
"""

import struct

import pyarrow as pa

from tidemark.decode.datum.varlena import MAX_ALIGN, PLAIN_HEADER_BYTES, VARLENA, BadDatum, datum_length, inline_payload
from tidemark.decode.types.codec import ArrowValue, Codec, ColumnKind, TextCodec
from tidemark.decode.types.quoting import NULL_ELEMENT, element_pattern, quoted_element, unquoted_element
from tidemark.model.relation import TypeDescription

DIMENSIONS_MAX = 6  # MAXDIM
HEADER_BYTES = 16  # ArrayType with its varlena header: alignment is relative to its start
_HEADER = struct.Struct("<iiI")  # ndim, dataoffset, elemtype


class ArrayShape:
    """Dimensions and lower bounds of one array, and the start of its elements."""

    def __init__(self, payload: bytes) -> None:
        if len(payload) < _HEADER.size:
            raise BadDatum(f"array of {len(payload)} bytes is cut off")
        dimensions, data_offset, _ = _HEADER.unpack_from(payload)
        bounds_end = _HEADER.size + dimensions * 8
        if not 0 <= dimensions <= DIMENSIONS_MAX or bounds_end > len(payload):
            raise BadDatum(f"array of {dimensions} dimensions in {len(payload)} bytes")
        numbers = struct.unpack_from(f"<{dimensions * 2}i", payload, _HEADER.size)
        self.sizes = numbers[:dimensions]
        self.lower_bounds = numbers[dimensions:]
        self.count = 1 if dimensions else 0
        for size in self.sizes:
            # An element takes at least one byte, or one bit of the bitmap: an array has no more elements than bits.
            if size < 0 or self.count * size > len(payload) * 8:
                raise BadDatum(f"array of {self.sizes} elements in {len(payload)} bytes")
            self.count *= size
        self.bitmap_at = bounds_end if data_offset else -1
        header = bounds_end + PLAIN_HEADER_BYTES
        self.data_at = (data_offset or header + -header % MAX_ALIGN) - PLAIN_HEADER_BYTES
        bitmap_end = bounds_end + ((self.count + 7) // 8 if data_offset else 0)
        if self.count and not bitmap_end <= self.data_at <= len(payload):
            raise BadDatum(f"array data at {data_offset} in {len(payload)} bytes")


def element_payloads(payload: bytes, shape: ArrayShape, element: TypeDescription) -> list[bytes | None]:
    """Return the payloads of the elements in storage order."""
    values: list[bytes | None] = []
    at = shape.data_at
    align = element.align.width
    for index in range(shape.count):
        if shape.bitmap_at >= 0 and not payload[shape.bitmap_at + index // 8] >> index % 8 & 1:
            values.append(None)
            continue
        at += -(at + PLAIN_HEADER_BYTES) % align
        length = datum_length(payload, at) if element.length == VARLENA else element.length
        if at + length > len(payload):
            raise BadDatum(f"array element {index + 1} is cut off")
        raw = payload[at : at + length]
        values.append(inline_payload(raw) if element.length == VARLENA else raw)
        at += length
    return values


class ArrayCodec(Codec):
    """An array of any type that has a codec."""

    kind = ColumnKind.ARRAY
    note = "the elements in storage order: dimensions and lower bounds are left out"

    def __init__(self, element: TypeDescription, codec: Codec) -> None:
        self.element = element
        self.element_codec = codec
        self._delimiter = element.delimiter
        self.arrow_type = pa.list_(codec.arrow_type)

    def text(self, payload: bytes) -> str:
        """Return the array literal, with bounds if one is not 1."""
        shape = ArrayShape(payload)
        if shape.count == 0:
            return "{}"
        texts = [
            NULL_ELEMENT if raw is None else quoted_element(self.element_codec.text(raw), self._delimiter)
            for raw in self._elements(payload)
        ]
        for size in reversed(shape.sizes):
            texts = ["{" + self._delimiter.join(texts[at : at + size]) + "}" for at in range(0, len(texts), size)]
        if all(bound == 1 for bound in shape.lower_bounds):
            return texts[0]
        pairs = zip(shape.lower_bounds, shape.sizes, strict=True)
        return "".join(f"[{low}:{low + size - 1}]" for low, size in pairs) + "=" + texts[0]

    def _elements(self, payload: bytes) -> list[bytes | None]:
        return element_payloads(payload, ArrayShape(payload), self.element)

    def arrow_value(self, payload: bytes) -> ArrowValue:
        """Return the elements in storage order."""
        return [None if raw is None else self.element_codec.arrow_value(raw) for raw in self._elements(payload)]

    def parse_text(self, text: str) -> ArrowValue:
        """Return the elements of an array literal in storage order."""
        body = text.partition("=")[2] if text.startswith("[") else text
        values: list[ArrowValue] = []
        for part in element_pattern(self._delimiter).finditer(body):
            if part.lastgroup:
                element = unquoted_element(part)
                values.append(None if element is None else self.element_codec.parse_text(element))
        return values


class CatalogVectorCodec(TextCodec):
    """`int2vector` and `oidvector`: arrays that print as numbers separated by blanks."""

    def __init__(self, element: TypeDescription, codec: Codec) -> None:
        self._element = element
        self._codec = codec

    def text(self, payload: bytes) -> str:
        """Return the numbers."""
        elements = element_payloads(payload, ArrayShape(payload), self._element)
        return " ".join(self._codec.text(raw) for raw in elements if raw is not None)
