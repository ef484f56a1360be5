"""What passes between an engine and its worker processes: frames of JSON and of Arrow IPC. Nothing is unpickled.

A request is two frames: the JSON of what is not columns, and the stream of one record batch. A reply is one frame.
"""

import json
import socket
import struct
from dataclasses import asdict, dataclass, field, replace

import pyarrow as pa

from tidemark.engine.batch import Batch
from tidemark.model.poison import WorkerProgress
from tidemark.model.position import Epoch
from tidemark.wire.relations import decode_relation, encode_relation

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """The outcome of a call in a worker."""

    cpu_s: float  # of the worker since it was forked
    kind: str = ""  # the class of the error; "": the handler returned
    text: str = ""
    is_final: bool = False  # a retry is useless
    poison: tuple[int, int] | None = None  # the handler raised `PoisonChange`: index and item; the reason is the text
    progress: WorkerProgress = field(default_factory=WorkerProgress)


def batch_frames(batch: Batch) -> tuple[bytes, pa.Buffer]:
    """Return both frames of a request."""
    head = {
        "database": batch.database,
        "table": batch.table,
        "relation": encode_relation(batch.relation).decode(),
        "described": encode_relation(replace(batch.relation, columns=batch.columns)).decode(),
        "key": batch.key,
        "epoch": (batch.epoch.timeline, batch.epoch.number),
        "parked_number": batch.parked_number,
    }
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.arrow.schema) as writer:
        writer.write_batch(batch.arrow)
    return json.dumps(head).encode(), sink.getvalue()


def framed_batch(head: bytes, rows: bytes) -> Batch:
    """Return the batch of a request."""
    fields = json.loads(head)
    return Batch(
        database=fields["database"],
        table=fields["table"],
        relation=decode_relation(fields["relation"].encode()),
        key=tuple(fields["key"]),
        columns=decode_relation(fields["described"].encode()).columns,
        epoch=Epoch(*fields["epoch"]),
        arrow=pa.ipc.open_stream(pa.py_buffer(rows)).read_next_batch(),
        parked_number=fields["parked_number"],
    )


def reply_frame(reply: WorkerReply) -> bytes:
    """Return the frame of a reply."""
    return json.dumps(asdict(reply)).encode()


def framed_reply(frame: bytes) -> WorkerReply:
    """Return the reply of a frame."""
    fields = json.loads(frame)
    poison, progress = fields.pop("poison"), fields.pop("progress")
    return WorkerReply(**fields, poison=poison and tuple(poison), progress=WorkerProgress(**progress))


def send_frame(peer: socket.socket, frame: bytes | pa.Buffer) -> None:
    """Send a frame; raise OSError if the peer has ended."""
    peer.sendall(_LENGTH.pack(len(frame)))
    peer.sendall(frame)


def receive_frame(peer: socket.socket) -> bytes | None:
    """Return the next frame; None if the peer has ended."""
    length = _receive(peer, _LENGTH.size)
    return None if length is None else _receive(peer, _LENGTH.unpack(length)[0])


def _receive(peer: socket.socket, size: int) -> bytes | None:
    made = bytearray(size)
    view, filled = memoryview(made), 0
    while filled < size:
        count = peer.recv_into(view[filled:])
        if not count:
            return None
        filled += count
    return bytes(made)
