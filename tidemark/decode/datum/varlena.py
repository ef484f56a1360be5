"""Values of variable length (`varatt.h`, PG 16): headers, inline compression, and pointers into TOAST tables.

A *datum* is a value with its header, as in a tuple; its *payload* is the input of the type's functions: without header,
decompressed. The first byte determines the kind of header:

    xxxxxxx1  short: length incl. this byte in the high 7 bits; never aligned
    00000001  external: a tag byte and a pointer into a TOAST table; never aligned
    xxxxxx00  plain: u32, length incl. itself in the high 30 bits; aligned as the type requires
    xxxxxx10  compressed inline: the same, then u32 with 30 bits raw length and 2 bits method

A zero byte where a datum may begin is padding before an aligned header: none of these can begin with zero.
"""

import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

import lz4.block

from tidemark.model.errors import CorruptWal
from tidemark.model.lsn import Oid
from tidemark.wal import pglz

PLAIN_HEADER_BYTES = 4
VARLENA = -1  # attlen and typlen of a type of variable length
MAX_ALIGN = 8
SHORT_HEADER = 1  # lowest bit of the first byte
EXTERNAL_HEADER = 1  # the whole first byte
EXTERNAL_TAG_ON_DISK = 18
EXTERNAL_DATUM_BYTES = 18
COMPRESSED_HEADER_BITS = 2
LENGTH_BITS = 30
LENGTH_MASK = (1 << LENGTH_BITS) - 1
EXPANSION_MAX = 255  # of lz4, where a length byte adds up to 255; pglz reaches 88
_U32 = struct.Struct("<I")
_POINTER = struct.Struct("<iIII")  # va_rawsize, va_extinfo, va_valueid, va_toastrelid


class BadDatum(CorruptWal):
    """A value whose bytes contradict its type or its tuple."""


class ExternalPointer(NamedTuple):
    """A value that is stored in a TOAST table (`varatt_external`)."""

    raw_size: int  # of the plain datum, header included
    stored_size: int  # total size of the chunks
    compression: int  # 0 pglz, 1 lz4; valid only if compressed
    value_id: Oid
    toast_relation: Oid

    @property
    def is_compressed(self) -> bool:
        """Return whether the chunks are compressed: then they begin with the u32 of length and method."""
        return self.stored_size < self.raw_size - PLAIN_HEADER_BYTES


def _lz4(data: bytes, raw_size: int) -> bytes:
    try:
        raw: bytes = lz4.block.decompress(data, uncompressed_size=raw_size)
    except lz4.block.LZ4BlockError as error:
        raise BadDatum(f"lz4 data of {len(data)} bytes cannot be decompressed") from error
    return raw


DECOMPRESSORS: dict[int, Callable[[bytes, int], bytes]] = {
    0: pglz.decompress,
    1: _lz4,
}  # by method (toast_compression.h)


def datum_length(data: bytes, at: int) -> int:
    """Return the length of the datum at `at`, header included; raise `BadDatum` if it exceeds the end of `data`."""
    space = len(data) - at
    if space < 1:
        raise BadDatum(f"value at byte {at} begins after the end of {len(data)} bytes")
    first = data[at]
    if first == EXTERNAL_HEADER:
        if space < EXTERNAL_DATUM_BYTES or data[at + 1] != EXTERNAL_TAG_ON_DISK:
            raise BadDatum(f"external value at byte {at} is cut off, or of a kind that is never on disk")
        return EXTERNAL_DATUM_BYTES
    if first & SHORT_HEADER:
        length = first >> 1
    elif space < PLAIN_HEADER_BYTES:
        raise BadDatum(f"header of the value at byte {at} is cut off")
    else:
        length = int(_U32.unpack_from(data, at)[0]) >> 2
        if length < PLAIN_HEADER_BYTES:
            raise BadDatum(f"value at byte {at} has the invalid length {length}")
    if length > space:
        raise BadDatum(f"value at byte {at} is {length} bytes long, but {space} are left")
    return length


def read_datum(data: bytes, at: int, length: int) -> bytes | ExternalPointer:
    """Return payload or pointer of the datum in `data[at : at + length]`, where `length` is its `datum_length`."""
    first = data[at]
    if first == EXTERNAL_HEADER:
        raw_size, info, value_id, relation = _POINTER.unpack_from(data, at + 2)
        return ExternalPointer(raw_size, info & LENGTH_MASK, info >> LENGTH_BITS, Oid(value_id), Oid(relation))
    if first & SHORT_HEADER:
        return data[at + 1 : at + length]
    body = data[at + PLAIN_HEADER_BYTES : at + length]
    return decompress(body) if first & COMPRESSED_HEADER_BITS else body


def inline_payload(datum: bytes) -> bytes:
    """Return the payload of one datum that cannot be external: inside arrays, composites, catalogs."""
    value = read_datum(datum, 0, datum_length(datum, 0))
    if isinstance(value, ExternalPointer):
        raise BadDatum("pointer into a TOAST table inside another value")
    return value


def decompress(body: bytes) -> bytes:
    """Decompress a body: u32 of raw length and method, then data."""
    if len(body) < PLAIN_HEADER_BYTES:
        raise BadDatum("compressed value without its length")
    info = int(_U32.unpack_from(body)[0])
    method = info >> LENGTH_BITS
    if method not in DECOMPRESSORS:
        raise BadDatum(f"compression method {method} is unknown")
    raw_size = info & LENGTH_MASK
    if raw_size > len(body) * EXPANSION_MAX:  # NB: memory is allocated by this number before it is verified
        raise BadDatum(f"{len(body)} compressed bytes announce {raw_size}")
    raw = DECOMPRESSORS[method](body[PLAIN_HEADER_BYTES:], raw_size)
    if len(raw) != raw_size:
        raise BadDatum(f"compressed value has {len(raw)} bytes, not the announced {raw_size}")
    return raw


def plain_datum(payload: bytes) -> bytes:
    """Return `payload` as a plain datum."""
    return _U32.pack(len(payload) + PLAIN_HEADER_BYTES << 2) + payload


def reassembled_datum(pointer: ExternalPointer, chunks: Iterable[bytes]) -> bytes:
    """Return the inline datum to which `pointer` refers, from its chunks' data."""
    bits = COMPRESSED_HEADER_BITS if pointer.is_compressed else 0
    datum = b"".join((_U32.pack(pointer.stored_size + PLAIN_HEADER_BYTES << 2 | bits), *chunks))
    stored = len(datum) - PLAIN_HEADER_BYTES
    if stored != pointer.stored_size:
        raise BadDatum(f"TOAST value {pointer.value_id} has {stored} bytes, not {pointer.stored_size}")
    return datum
