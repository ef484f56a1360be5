"""Files that describe a base backup: pg_control, backup_label, a relation map, backup_manifest."""

import hashlib
import struct

import google_crc32c

from tests.support.forged.byte_targets.target import Bytes, ByteTarget, refusals
from tidemark.model.errors import ConfigError
from tidemark.wal.backup_manifest import parse_manifest
from tidemark.wal.data_directory import directory_format, parse_control, parse_label
from tidemark.wal.rmgr import relmap
from tidemark.wal.versions import MAJORS, wal_format

MANIFEST = (
    b'{ "PostgreSQL-Backup-Manifest-Version": 2,\n"System-Identifier": 7,\n"Files": [\n'
    b'{ "Path": "base/5/1259", "Size": 16384, "Checksum-Algorithm": "CRC32C", "Checksum": "0a0b0c0d" },\n'
    b'{ "Encoded-Path": "50475f56455253494f4e", "Size": 3 }\n],\n'
    b'"WAL-Ranges": [\n{ "Timeline": 1, "Start-LSN": "0/2000028", "End-LSN": "0/2000100" }\n]'
)
LABEL = (
    b"START WAL LOCATION: 0/2000028 (file 000000010000000000000002)\nCHECKPOINT LOCATION: 0/2000060\n"
    b"BACKUP METHOD: streamed\nBACKUP FROM: primary\nSTART TIME: 2026-11-22 02:00:00 UTC\nLABEL: x\nSTART TIMELINE: 1\n"
)


def run(data: bytes) -> None:
    """Read a file; a prefix selects its kind and major. A file with a checksum gets a correct one."""
    given = Bytes(data)
    kind, major = given.number() % 4, MAJORS[given.number() % len(MAJORS)]
    content = given.rest()
    with refusals(ConfigError):
        if kind == 0:
            assert parse_label(content.decode("utf-8", "replace"), "the file").start_lsn > 0
        elif kind == 1:
            parse_control(_with_crc(content, directory_format(major).control_crc_at), major, "the file")
        elif kind == 3:
            manifest = parse_manifest(_sealed(content), "the file", lambda _: True)
            assert all(listed.size >= 0 for listed in manifest.files.values())
        else:
            fmt = wal_format(major)
            files = relmap.parse_file(_with_crc(content, 8 + 8 * fmt.relmap_slots), fmt)
            assert files is None or len(files) <= fmt.relmap_slots


def _sealed(content: bytes) -> bytes:
    head = content + b",\n"
    return head + b'"Manifest-Checksum": "%b"}\n' % hashlib.sha256(head).hexdigest().encode()


def _with_crc(content: bytes, at: int) -> bytes:
    return content[:at] + struct.pack("<I", google_crc32c.value(content[:at])) + content[at:]


TARGETS = (
    ByteTarget(
        "backup_file",
        run,
        {
            "label": b"\0\1" + LABEL,
            "control": b"\1\1" + struct.pack("<QII", 77, 1300, 202209061).ljust(296, b"\0"),
            "map": b"\2\1" + struct.pack("<iiII", relmap.MAGIC, 1, 1259, 1259).ljust(512, b"\0"),
            "manifest": b"\3\1" + MANIFEST,
        },
    ),
)
