"""Types of the extension pgvector (`vector.h`, `halfvec.h`, `sparsevec.h`, 0.8): a header, then the elements."""

import struct

import pyarrow as pa

from tidemark.decode.datum.varlena import BadDatum
from tidemark.decode.types.codec import ArrowValue, Codec, TextCodec
from tidemark.decode.types.families.float_text import single_text

_HEAD = struct.Struct("<hh")  # dimensions, unused
_SPARSE_HEAD = struct.Struct("<iii")  # dimensions, stored elements, unused
_SINGLE = struct.Struct("<f")


def _single_text(value: float) -> str:
    return single_text(_SINGLE.pack(value))


class VectorCodec(Codec):
    """`vector` (four bytes an element) and `halfvec` (two, which a float4 represents exactly)."""

    arrow_type = pa.list_(pa.float32())
    note = "the elements"

    def __init__(self, form: str) -> None:
        self._form = form

    def _elements(self, payload: bytes) -> tuple[float, ...]:
        count = _HEAD.unpack_from(payload)[0] if len(payload) >= _HEAD.size else -1
        if count < 0 or _HEAD.size + count * struct.calcsize(self._form) != len(payload):
            raise BadDatum(f"vector of {count} elements in {len(payload)} bytes")
        return struct.unpack_from(f"<{count}{self._form}", payload, _HEAD.size)

    def text(self, payload: bytes) -> str:
        """Return the elements in brackets."""
        return f"[{','.join(map(_single_text, self._elements(payload)))}]"

    def arrow_value(self, payload: bytes) -> ArrowValue:
        """Return the elements."""
        return list(self._elements(payload))

    def parse_text(self, text: str) -> ArrowValue:
        """Return the elements."""
        return [float(part) for part in text.strip("[]").split(",") if part]


class SparseVectorCodec(TextCodec):
    """`sparsevec`: indexes and values of the nonzero elements."""

    def text(self, payload: bytes) -> str:
        """Return index and value of each, indexes from 1 on, and the number of dimensions."""
        dimensions, count, _ = _SPARSE_HEAD.unpack_from(payload) if len(payload) >= _SPARSE_HEAD.size else (0, -1, 0)
        if count < 0 or _SPARSE_HEAD.size + count * 8 != len(payload):
            raise BadDatum(f"sparse vector of {count} elements in {len(payload)} bytes")
        locations = struct.unpack_from(f"<{count}i", payload, _SPARSE_HEAD.size)
        values = struct.unpack_from(f"<{count}f", payload, _SPARSE_HEAD.size + count * 4)
        parts = (f"{place + 1}:{_single_text(value)}" for place, value in zip(locations, values, strict=True))
        return "{" + ",".join(parts) + "}/" + str(dimensions)
