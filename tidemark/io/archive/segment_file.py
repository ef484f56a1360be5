"""One file of an archive or a backup, plain or compressed by a backup tool.

NAME, NAME.gz, NAME.lz4, NAME.zst, and pgBackRest's NAME-<SHA-1> with or without one of these. A file is read from front
to back, never as a whole.
"""

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import lz4.frame
import zstandard

from tidemark.model.errors import CorruptWal

SKIP_BYTES = 1 << 20
_CHECKSUM = re.compile(r"-[0-9a-f]{40}$")
_COMPRESSED = (".gz", ".lz4", ".zst")


class DamagedFile(CorruptWal):
    """A compressed file that cannot be decompressed."""

    hint = "fetch the file again from the node or another copy of the archive"


class Readable(Protocol):
    """The reading interface of a file; fewer bytes than requested mean its end."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes."""


def wal_name(name: str) -> str:
    """Return the server's name for the file that is now called `name`."""
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    return _CHECKSUM.sub("", name)


@contextmanager
def open_unpacked(path: Path) -> Iterator[Readable]:
    """Open a file for its decompressed bytes; reads raise `DamagedFile` for invalid content."""
    with path.open("rb") as file:
        unpacked: Readable
        match path.suffix:
            case ".gz":
                unpacked = gzip.GzipFile(fileobj=file)
            case ".lz4":
                unpacked = lz4.frame.LZ4FrameFile(file)
            case ".zst":
                unpacked = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
            case _:
                unpacked = file
        try:
            yield unpacked
        except (EOFError, gzip.BadGzipFile, zlib.error, RuntimeError, zstandard.ZstdError) as error:
            raise DamagedFile(f"{path.name} cannot be unpacked: {error}") from error


def skip(file: Readable, size: int) -> None:
    """Read and discard `size` bytes, or up to the end."""
    while size > 0 and (block := file.read(min(size, SKIP_BYTES))):
        size -= len(block)
