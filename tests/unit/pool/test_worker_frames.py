"""Batches and replies through a socket: what arrives is what was sent, and a table is described once."""

import socket
import threading
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from tests.support.forged.groups import batch as change_batch
from tidemark import Batch, Epoch
from tidemark.model.lsn import TimelineId
from tidemark.model.poison import WorkerProgress
from tidemark.runtime.pool import worker_frames
from tidemark.runtime.pool.worker_frames import (
    SLOTS_MAX,
    BatchReceiver,
    BatchSender,
    WorkerReply,
    receive_reply,
    send_reply,
)

MADE = change_batch(100, [1, 2, 3])
BATCH = Batch.of("shop", MADE.relation, Epoch(TimelineId(1), 7), MADE.rows)
DICTIONARY = pa.record_batch(
    {
        "plain": pa.array(["a", "b", "a"]).dictionary_encode(),
        "nested": pa.array([["x"], [], ["y"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    }
)
LARGE = pa.record_batch({"text": pa.array(["x" * 1000] * 4000)})  # more than a socket's buffer


def passed(*batches: Batch) -> tuple[Sequence[Batch], int]:
    """Return the batches as they arrive, and the number of bytes that passed."""
    sent: list[bytes] = []
    sending, relayed = socket.socketpair()
    relaying, receiving = socket.socketpair()

    def send() -> None:
        with sending:
            sender = BatchSender(sending)
            for each in batches:
                sender.send(each)

    def relay() -> None:
        with relayed, relaying:
            while piece := relayed.recv(1 << 16):
                sent.append(piece)
                relaying.sendall(piece)

    threads = [threading.Thread(target=each) for each in (send, relay)]
    for thread in threads:
        thread.start()
    with receiving:
        found = [request.batch() for request in BatchReceiver(receiving).requests()]
    for thread in threads:
        thread.join()
    return found, sum(map(len, sent))


def same(found: Batch, sent: Batch) -> bool:
    names = ("database", "table", "relation", "key", "columns", "epoch", "parked_number")
    is_same = all(getattr(found, name) == getattr(sent, name) for name in names)
    return is_same and found.arrow.equals(sent.arrow, check_metadata=True)


@pytest.mark.parametrize(
    "sent",
    [
        BATCH,
        replace(BATCH, parked_number=5, table="other.name", key=(), columns=()),
        replace(BATCH, arrow=BATCH.arrow.slice(1, 1)),
        replace(BATCH, arrow=BATCH.arrow.slice(0, 0)),
        replace(BATCH, arrow=BATCH.arrow.replace_schema_metadata({"a": "b"})),
        replace(BATCH, arrow=DICTIONARY),
        replace(BATCH, arrow=LARGE),
    ],
)
def test_a_batch_arrives_as_it_was_sent(sent: Batch) -> None:
    found, _ = passed(sent, sent)
    assert len(found) == 2
    assert all(same(each, sent) for each in found)


def test_a_table_is_described_again_when_something_of_its_version_changes() -> None:
    sent = [
        BATCH,
        replace(BATCH, epoch=Epoch(TimelineId(1), 8)),
        replace(BATCH, arrow=BATCH.arrow.drop_columns("_origin")),
        replace(BATCH, relation=replace(BATCH.relation, name="renamed")),
        replace(BATCH, key=()),
        BATCH,
    ]
    found, _ = passed(*sent)
    assert all(map(same, found, sent))


def test_the_second_batch_of_a_version_passes_without_its_description() -> None:
    _, once = passed(BATCH)
    _, twice = passed(BATCH, BATCH)
    assert twice - once < once / 2


def test_more_tables_than_slots_pass_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SLOTS_MAX >= 16
    monkeypatch.setattr(worker_frames, "SLOTS_MAX", 3)
    tables = [replace(BATCH, table=f"public.t{number}") for number in (0, 1, 2, 3, 0, 0, 4, 1, 2, 3)]
    found, _ = passed(*tables)
    assert [each.table for each in found] == [each.table for each in tables]
    assert all(map(same, found, tables))


@pytest.mark.parametrize(
    "reply",
    [
        WorkerReply(1.5),
        WorkerReply(0.0, "KeyError", "é", disposition="halt"),
        WorkerReply(0.0, "Fenced", "é", names=("tidemark.model.errors.Fenced", "é"), hint="è"),
        WorkerReply(2.0, "PoisonChange", "bad", poison=(3, 0), progress=WorkerProgress(4, is_new=True)),
    ],
)
def test_a_reply_arrives_as_it_was_sent(reply: WorkerReply) -> None:
    own, theirs = socket.socketpair()
    with theirs:
        with own:
            send_reply(own, reply)
        assert receive_reply(theirs) == reply
        assert receive_reply(theirs) is None


@pytest.mark.parametrize("size", [1, 25, 26, 27, 200])
def test_a_request_that_ends_early_is_none(size: int) -> None:
    own, theirs = socket.socketpair()
    sending, reading = socket.socketpair()
    with sending:
        BatchSender(sending).send(BATCH)
    with own, reading:
        own.sendall(reading.recv(1 << 20)[:size])
    with theirs:
        assert [*BatchReceiver(theirs).requests()] == []
