"""Input from the node, from other sessions and from other programs: messages, markers, requests, history files."""

import hmac
import json
from struct import pack

from tests.support.forged.byte_targets.target import Bytes, ByteTarget, refusals
from tidemark.model.errors import CorruptWal
from tidemark.model.lsn import Lsn, SystemIdentifier, TimelineId
from tidemark.model.position import Epoch, Pointer, Position, Sequence
from tidemark.wal.segments import BadHistory, parse_history
from tidemark.wire.control import BadRequest, decode_line
from tidemark.wire.marker import Instance, Marker, MarkerKind, read_marker, write_marker
from tidemark.wire.replication import parse_message

INSTANCE = Instance(SystemIdentifier(7_000_000_000_000_000_001), "main")
KEY = bytes(range(32))
MARKER = Marker(
    MarkerKind.STOP,
    INSTANCE,
    Epoch(TimelineId(1), 3),
    Sequence(9),
    Pointer(Position(TimelineId(1), Lsn(0x2000028), 4), Lsn(0x2000000)),
    "ring full",
)


def run_marker(data: bytes) -> None:
    """Read a message with our prefix: unchanged, and with an HMAC by our key."""
    given = Bytes(data)
    signed = given.number() % 2
    content = given.rest()
    if signed:
        content += b" " + hmac.new(KEY, content, "sha256").hexdigest().encode()
    read_marker(content, INSTANCE, KEY)  # never an error: any session can write such a message


def run_replication(data: bytes) -> None:
    """Read a message of the replication stream."""
    with refusals(CorruptWal):
        parse_message(data)


def run_control(data: bytes) -> None:
    """Read a request or an answer of the control socket."""
    with refusals(BadRequest):
        decode_line(data)


def run_timeline_history(data: bytes) -> None:
    """Read a timeline's history file."""
    given = Bytes(data)
    timeline = given.number(4)
    with refusals(BadHistory):
        history = parse_history(given.rest().decode(errors="replace"), timeline)
        assert history.timeline == timeline
        assert history.timeline_at(0x3000000) in history


def _marker_seed(**changed: object) -> bytes:
    line, _, _ = write_marker(MARKER, KEY).rpartition(b" ")
    return b"\1" + json.dumps({**json.loads(line), **changed}).encode()


TARGETS = (
    ByteTarget(
        "marker",
        run_marker,
        {
            "whole": b"\0" + write_marker(MARKER, KEY),
            "line": _marker_seed(),
            "nothing_delivered": _marker_seed(delivered="", restart=""),
        },
    ),
    ByteTarget(
        "replication",
        run_replication,
        {
            "wal": pack(">cQQq", b"w", 1 << 24, 1 << 25, 5) + b"bytes of WAL",
            "keepalive": pack(">cQqB", b"k", 1 << 24, 5, 1),
        },
    ),
    ByteTarget("control", run_control, {"request": b'{"command": "status"}\n'}),
    ByteTarget(
        "timeline_history",
        run_timeline_history,
        {"two_forks": pack("<I", 3) + b"1\t0/3000028\tno recovery target\n\n# a comment\n2\t0/5000000\tpromoted\n"},
    ),
)
