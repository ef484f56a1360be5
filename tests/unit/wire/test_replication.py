"""Replication messages: every shape that a server sends, and nothing else."""

import struct

import pytest

from tidemark.model.commit_time import PG_EPOCH_US
from tidemark.model.errors import CorruptWal
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.wal.segments import SLICE_BYTES_MAX
from tidemark.wire.replication import (
    Keepalive,
    WalData,
    history_command,
    parse_message,
    start_command,
    status_update,
)


def test_wal_data_keeps_its_payload_without_a_copy() -> None:
    message = b"w" + struct.pack(">QQq", 0x1_0000_0010, 0x1_0000_0020, 7) + b"payload"
    parsed = parse_message(memoryview(message))
    assert parsed == WalData(Lsn(0x1_0000_0010), Lsn(0x1_0000_0020), PG_EPOCH_US + 7, memoryview(b"payload"))
    assert isinstance(parsed, WalData)
    assert parsed.payload.obj is message


@pytest.mark.parametrize(("flag", "wanted"), [(0, False), (1, True)])
def test_a_keepalive_states_whether_it_requests_a_reply(flag: int, wanted: bool) -> None:  # noqa: FBT001
    assert parse_message(b"k" + struct.pack(">QqB", 5, 0, flag)) == Keepalive(Lsn(5), PG_EPOCH_US, wanted)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"w",
        b"k",
        b"x" * 40,
        b"w" + bytes(23),
        b"k" + bytes(16),
        b"k" + bytes(18),
        b"w" + bytes(24 + SLICE_BYTES_MAX + 1),
    ],
    ids=lambda message: f"{message[:1]!r}-{len(message)}",
)
def test_a_message_that_no_server_sends_is_corrupt(message: bytes) -> None:
    with pytest.raises(CorruptWal):
        parse_message(message)


def test_a_status_never_claims_to_have_flushed_or_applied() -> None:
    kind, written, flushed, applied, sent, reply = struct.unpack(
        ">cQQQqB", status_update(Lsn(0xABCDEF), PG_EPOCH_US + 1)
    )
    assert (kind, written, flushed, applied, sent, reply) == (b"r", 0xABCDEF, 0, 0, 1, 0)


def test_commands_are_spelled_as_the_server_parses_them() -> None:
    assert start_command(Lsn(0x2_0000_00FF), TimelineId(3)) == b"START_REPLICATION PHYSICAL 2/FF TIMELINE 3"
    assert history_command(TimelineId(3)) == b"TIMELINE_HISTORY 3"
