"""Files of a base backup that say what it is: pg_control, backup_label, a relation map."""

import struct

import google_crc32c

from tests.support.byte_targets.target import Bytes, Target, refusals
from tidemark.model.errors import ConfigError
from tidemark.wal.data_directory import directory_format, parse_control, parse_label
from tidemark.wal.rmgr import relmap
from tidemark.wal.versions import MAJORS, wal_format

LABEL = (
    b"START WAL LOCATION: 0/2000028 (file 000000010000000000000002)\nCHECKPOINT LOCATION: 0/2000060\n"
    b"BACKUP METHOD: streamed\nBACKUP FROM: primary\nSTART TIME: 2026-11-22 02:00:00 UTC\nLABEL: x\nSTART TIMELINE: 1\n"
)


def run(data: bytes) -> None:
    """Read a file; which one, and of which major, stands before it. What a checksum covers has a sound one."""
    given = Bytes(data)
    kind, major = given.number() % 3, MAJORS[given.number() % len(MAJORS)]
    content = given.rest()
    with refusals(ConfigError):
        if kind == 0:
            assert parse_label(content.decode("utf-8", "replace"), "the file").start_lsn > 0
        elif kind == 1:
            parse_control(_with_crc(content, directory_format(major).control_crc_at), major, "the file")
        else:
            fmt = wal_format(major)
            files = relmap.parse_file(_with_crc(content, 8 + 8 * fmt.relmap_slots), fmt)
            assert files is None or len(files) <= fmt.relmap_slots


def _with_crc(content: bytes, at: int) -> bytes:
    return content[:at] + struct.pack("<I", google_crc32c.value(content[:at])) + content[at:]


TARGETS = (
    Target(
        "backup_file",
        run,
        {
            "label": b"\0\1" + LABEL,
            "control": b"\1\1" + struct.pack("<QII", 77, 1300, 202209061).ljust(296, b"\0"),
            "map": b"\2\1" + struct.pack("<iiII", relmap.MAGIC, 1, 1259, 1259).ljust(512, b"\0"),
        },
    ),
)
