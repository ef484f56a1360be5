"""Files of an archive: the beginning of a segment, and compressed files."""

import gzip
import tempfile
from pathlib import Path

import lz4.frame
import zstandard

from tests.support.forged.byte_targets.target import Bytes, ByteTarget, refusals
from tests.support.forged.wal import WalWriter, body
from tidemark.io.archive.archive import parse_segment_header
from tidemark.io.archive.segment_file import DamagedFile, open_unpacked

SUFFIXES = ("", ".gz", ".lz4", ".zst")
BYTES_MAX = 1 << 20
_SEGMENT = WalWriter()
_SEGMENT.add(body(b"row"))


def run(data: bytes) -> None:
    """Read the first bytes of a file, packed as its name states."""
    given = Bytes(data)
    suffix = SUFFIXES[given.number() % len(SUFFIXES)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"000000010000000000000001{suffix}"
        path.write_bytes(given.rest())
        with refusals(DamagedFile), open_unpacked(path) as file:
            unpacked = file.read(BYTES_MAX)
            assert len(unpacked) <= BYTES_MAX
            header = parse_segment_header(unpacked)
            assert header is None or header.page_lsn >= 0


TARGETS = (
    ByteTarget(
        "segment_file",
        run,
        {
            "plain": b"\0" + bytes(_SEGMENT.data),
            "gzip": b"\1" + gzip.compress(bytes(_SEGMENT.data), mtime=0),
            "lz4": b"\2" + lz4.frame.compress(bytes(_SEGMENT.data)),
            "zstd": b"\3" + zstandard.ZstdCompressor().compress(bytes(_SEGMENT.data)),
        },
    ),
)
