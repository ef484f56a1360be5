"""The messages inside a physical replication stream, and the commands that start one.

Source: "Streaming Replication Protocol" in PostgreSQL's manual, `walsender.c`. All integers are big-endian here, unlike
in WAL itself; times are microseconds since 2000-01-01. This module uses no socket.
"""

import struct
from dataclasses import dataclass

from tidemark.model.commit_time import PG_EPOCH_US
from tidemark.model.errors import CorruptWal
from tidemark.model.lsn import Lsn, TimelineId, format_lsn
from tidemark.wal.segments import SLICE_BYTES_MAX

_WAL_DATA = struct.Struct(">cQQq")
_KEEPALIVE = struct.Struct(">cQqB")
_STATUS = struct.Struct(">cQQQqB")


@dataclass(slots=True)  # NB: each commit creates one, and a frozen object takes three times as long
class WalData:
    """A piece of WAL; `server_end_lsn` is how far the server could send by then."""

    start_lsn: Lsn
    server_end_lsn: Lsn
    sent_us: int  # since 1970-01-01 UTC
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Keepalive:
    """A keepalive of the server; if it asks for a reply, a fast shutdown waits for that reply."""

    server_end_lsn: Lsn
    sent_us: int  # since 1970-01-01 UTC
    reply_requested: bool


def parse_message(message: bytes | memoryview) -> WalData | Keepalive:
    """Parse one CopyData message; raise `CorruptWal` for a message that no server sends."""
    view = memoryview(message)
    kind = bytes(view[:1])
    if kind == b"w" and _WAL_DATA.size <= len(view) <= _WAL_DATA.size + SLICE_BYTES_MAX:
        _, start, end, sent = _WAL_DATA.unpack_from(view)
        return WalData(Lsn(start), Lsn(end), sent + PG_EPOCH_US, view[_WAL_DATA.size :])
    if kind == b"k" and len(view) == _KEEPALIVE.size:
        _, end, sent, reply = _KEEPALIVE.unpack(view)
        return Keepalive(Lsn(end), sent + PG_EPOCH_US, bool(reply))
    raise CorruptWal(
        f"a replication message of kind {kind!r} and {len(view)} bytes is not one that PostgreSQL sends",
        hint="check whether a program other than PostgreSQL answers at the node's address",
    )


def status_update(written_lsn: Lsn, now_us: int, *, reply_requested: bool = False) -> bytes:
    """Return the standby status: `written_lsn` is shown in pg_stat_replication.

    NB: flush and apply stay 0: with a position there a capture could be counted as a synchronous standby, and commits
    of the node would wait for us (syncrep.c ignores a standby whose flush position is invalid).
    """
    return _STATUS.pack(b"r", written_lsn, 0, 0, now_us - PG_EPOCH_US, reply_requested)


def start_command(start_lsn: Lsn, timeline: TimelineId) -> bytes:
    """Return the command that starts streaming at `start_lsn` of `timeline`."""
    return f"START_REPLICATION PHYSICAL {format_lsn(start_lsn)} TIMELINE {timeline}".encode()


def history_command(timeline: TimelineId) -> bytes:
    """Return the command that requests the history file of `timeline`."""
    return f"TIMELINE_HISTORY {timeline}".encode()
