"""PostgreSQL's own LZ decompressor (`pg_lzcompress.c`, PG 15): TOASTed values and page images.

A control byte announces eight items, lowest bit first: 0 is one literal byte, 1 a back reference of two bytes (low
nibble of the first: length - 3; high nibble and second byte: distance), and a third one where the length nibble is 15.
"""

from tidemark.model.errors import CorruptWal

MIN_MATCH = 3
LONG_MATCH = 18  # nibble 15 plus MIN_MATCH: another length byte follows
ITEMS_PER_CONTROL_BYTE = 8


class BadPglz(CorruptWal):
    """Bytes that `pglz_compress` does not write."""


def decompress(data: bytes, rawsize: int) -> bytes:
    """Return the `rawsize` bytes that `data` was compressed from; raise `BadPglz` for anything else."""
    out = bytearray()
    at = 0
    end = len(data)
    while at < end and len(out) < rawsize:
        control = data[at]
        at += 1
        if control == 0:  # eight literals: the common case of data that hardly compresses
            out += data[at : at + ITEMS_PER_CONTROL_BYTE]
            at += ITEMS_PER_CONTROL_BYTE
            continue
        for bit in range(ITEMS_PER_CONTROL_BYTE):
            if at >= end or len(out) >= rawsize:
                break
            if control >> bit & 1:
                at = _copy_match(data, at, out)
            else:
                out.append(data[at])
                at += 1
    if at < end or len(out) != rawsize:
        raise BadPglz(f"pglz data of {end} bytes gives {len(out)} bytes where {rawsize} were announced")
    return bytes(out)


def _copy_match(data: bytes, at: int, out: bytearray) -> int:
    """Append what the back reference at `at` names; return the offset after it."""
    if at + 2 > len(data):
        raise BadPglz(f"pglz back reference cut off at byte {at}")
    first = data[at]
    length = (first & 0x0F) + MIN_MATCH
    distance = (first & 0xF0) << 4 | data[at + 1]
    at += 2
    if length == LONG_MATCH:
        if at >= len(data):
            raise BadPglz(f"pglz back reference cut off at byte {at}")
        length += data[at]
        at += 1
    if distance == 0 or distance > len(out):
        raise BadPglz(f"pglz back reference over {distance} bytes where only {len(out)} are known")
    pattern = bytes(out[-distance:])
    out += (pattern * (length // distance + 1))[:length]  # NB: source and target may overlap: the pattern repeats
    return at
