"""PostgreSQL's own compression (`pg_lzcompress.c`): page images and TOASTed values.

The bits of a control byte, lowest first, describe the next eight items: a literal byte (0) or a copy (1) of earlier
output. A copy has two bytes, with length - 3 in four bits and distance in twelve, and a third byte to add if the
length is 18.
The module is compiled if a compiler is available; its `.pxd` declares the types.
"""

from tidemark.model.errors import CorruptWal

try:
    import cython
except ImportError:
    from tidemark.wal import cython_stub as cython


class BadCompression(CorruptWal):
    """Bytes that are not a pglz stream of the expected length."""


def decompress(source: bytes, raw_bytes: int) -> bytes:
    """Decompress `source` to `raw_bytes` bytes; raise `BadCompression` if the length differs."""
    target = bytearray(raw_bytes)
    if not expand(source, target):
        raise BadCompression(f"{len(source)} bytes of pglz do not expand to {raw_bytes}")
    return bytes(target)


def expand(source: bytes, target: bytearray) -> bool:
    """Fill `target` from `source`; return False if it does not fill it exactly."""
    size = len(source)
    disk_space = len(target)
    at = 0
    filled = 0
    with cython.nogil:
        while at < size and filled < disk_space:
            control = source[at]
            at += 1
            bit = 0
            while bit < 8 and at < size and filled < disk_space:
                if control >> bit & 1:
                    if at + 2 > size:
                        return False
                    first = source[at]
                    second = source[at + 1]
                    at += 2
                    length = (first & 15) + 3
                    distance = (first & 240) << 4 | second
                    if length == 18:
                        if at == size:
                            return False
                        extra = source[at]
                        at += 1
                        length += extra
                    # NB: the server cuts a copy at the end of the output; only a distance can be wrong.
                    if distance == 0 or distance > filled:
                        return False
                    length = min(length, disk_space - filled)
                    while length > 0:
                        target[filled] = target[filled - distance]
                        filled += 1
                        length -= 1
                else:
                    target[filled] = source[at]
                    filled += 1
                    at += 1
                bit += 1
    return filled == disk_space and at == size
