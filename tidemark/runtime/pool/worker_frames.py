"""What passes between a pool and its worker processes: JSON and Arrow IPC, by a socket. Nothing is unpickled.

    request   slot, lengths, number of a parked change | description, if it is new in this slot | rows
    reply     CPU time, length | JSON of an error, if there is one

What the batches of a version of a table have in common is described once for each worker, and kept in a slot there.
Both sides know the same slots, because only requests that were answered count: a worker that ends takes them with it.
"""

import base64
import json
import socket
import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count

import pyarrow as pa

from tidemark.engine.pool.batch import Batch
from tidemark.model.errors import Disposition
from tidemark.model.lsn import Oid
from tidemark.model.poison import WorkerProgress
from tidemark.model.position import Epoch
from tidemark.model.relation import Column, Relation
from tidemark.wire.relations import decode_relation, encode_relation

SLOTS_MAX = 256  # descriptions that a worker keeps: of tables in use at the same time
_REQUEST = struct.Struct("<HQQQ")
_REPLY = struct.Struct("<dQ")


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """The outcome of a call in a worker."""

    cpu_s: float  # of the worker since it was forked
    kind: str = ""  # the class of the error; "": the handler returned
    text: str = ""
    disposition: str = Disposition.RETRY.value
    poison: tuple[int, int] | None = None  # the handler raised `PoisonChange`: index and item; the reason is the text
    progress: WorkerProgress = field(default_factory=WorkerProgress)
    names: tuple[str, ...] = ()  # of an error of Tidemark: its class and the bases, with the hint
    hint: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class BatchVersion:
    """What the batches of a version of a table have in common."""

    database: str
    table: str
    relation: Relation
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    epoch: Epoch
    schema: pa.Schema
    database_oid: Oid
    has_dictionaries: bool  # they pass with the rows

    @classmethod
    def of(cls, batch: Batch) -> "BatchVersion":
        """Return the version of a batch."""
        schema = batch.arrow.schema
        return cls(
            batch.database,
            batch.table,
            batch.relation,
            batch.key,
            batch.columns,
            batch.epoch,
            schema,
            batch.database_oid,
            any(map(_has_dictionary, schema.types)),
        )

    def fits(self, batch: Batch) -> bool:
        """Return whether a batch is of this version."""
        return (
            self.relation == batch.relation
            and self.database_oid == batch.database_oid
            and self.columns == batch.columns
            and self.key == batch.key
            and self.epoch == batch.epoch
            and self.schema.equals(batch.arrow.schema, check_metadata=True)
        )

    def encoded(self) -> bytes:
        """Return the description for a worker."""
        head = {
            "database": self.database,
            "database_oid": self.database_oid,
            "table": self.table,
            "relation": encode_relation(self.relation).decode(),
            "described": encode_relation(replace(self.relation, columns=self.columns)).decode(),
            "key": self.key,
            "epoch": (self.epoch.timeline, self.epoch.number),
            "schema": base64.b64encode(self.schema.serialize()).decode(),
        }
        return json.dumps(head).encode()

    @classmethod
    def decoded(cls, description: bytes | bytearray) -> "BatchVersion":
        """Return the version that was described."""
        fields = json.loads(description)
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(fields["schema"])))
        return cls(
            database=fields["database"],
            database_oid=Oid(fields["database_oid"]),
            table=fields["table"],
            relation=decode_relation(fields["relation"].encode()),
            key=tuple(fields["key"]),
            columns=decode_relation(fields["described"].encode()).columns,
            epoch=Epoch(*fields["epoch"]),
            schema=schema,
            has_dictionaries=any(map(_has_dictionary, schema.types)),
        )

    def encoded_rows(self, rows: pa.RecordBatch) -> pa.Buffer:
        """Return rows for a worker that has the version."""
        if not self.has_dictionaries:
            return rows.serialize()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_batch(rows)
        return sink.getvalue()

    def batch(self, rows: bytes | bytearray, parked_number: int) -> Batch:
        """Return a batch of this version."""
        buffer = pa.py_buffer(rows)
        if self.has_dictionaries:
            arrow = pa.ipc.open_stream(buffer).read_next_batch()
        else:
            arrow = pa.ipc.read_record_batch(buffer, self.schema)
        common = (self.database, self.table, self.relation, self.key, self.columns, self.epoch)
        return Batch(*common, arrow, parked_number, self.database_oid)


class BatchSender:
    """Sends batches to one worker, and records the table versions that this worker has."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._slots: OrderedDict[tuple[str, str], tuple[int, BatchVersion]] = OrderedDict()
        self._free = count()

    def send(self, batch: Batch) -> None:
        """Send a batch; raise OSError if the peer has ended, which ends the worker's slots with it."""
        name = batch.database, batch.table
        known = self._slots.get(name)
        fits = known is not None and known[1].fits(batch)
        version = known[1] if known is not None and fits else BatchVersion.of(batch)
        rows = version.encoded_rows(batch.arrow)
        description = b"" if fits else version.encoded()
        slot = self._free_slot() if known is None else known[0]
        self._slots[name] = slot, version
        _send(self._peer, [_REQUEST.pack(slot, len(description), len(rows), batch.parked_number), description, rows])

    def _free_slot(self) -> int:
        """Return a slot: that of the table which came first, once all are in use."""
        if len(self._slots) < SLOTS_MAX:
            return next(self._free)
        return self._slots.popitem(last=False)[1][0]


class BatchReceiver:
    """Receives batches in a worker."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._versions: dict[int, BatchVersion] = {}

    def requests(self) -> Iterator["BatchRequest"]:
        """Yield the requests until the peer has ended."""
        while (head := _received(self._peer, _REQUEST.size)) is not None:
            slot, described, size, parked_number = _REQUEST.unpack(head)
            if described:
                description = _received(self._peer, described)
                if description is None:
                    return
                self._versions[slot] = BatchVersion.decoded(description)
            rows = _received(self._peer, size)
            if rows is None:
                return
            yield BatchRequest(self._versions[slot], rows, parked_number)


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A received batch; the same batch is sent again after an error."""

    version: BatchVersion
    rows: bytearray
    parked_number: int

    def batch(self) -> Batch:
        """Return the batch."""
        return self.version.batch(self.rows, self.parked_number)


def send_reply(peer: socket.socket, reply: WorkerReply) -> None:
    """Send the outcome of a call."""
    outcome = json.dumps(asdict(reply)).encode() if reply.kind else b""
    _send(peer, [_REPLY.pack(reply.cpu_s, len(outcome)), outcome])


def receive_reply(peer: socket.socket) -> WorkerReply | None:
    """Return the outcome of a call; None if the worker has ended."""
    head = _received(peer, _REPLY.size)
    if head is None:
        return None
    cpu_s, size = _REPLY.unpack(head)
    if not size:
        return WorkerReply(cpu_s)
    outcome = _received(peer, size)
    if outcome is None:
        return None
    fields = json.loads(outcome)
    poison, progress, names = (fields.pop(name) for name in ("poison", "progress", "names"))
    return WorkerReply(
        **fields, poison=poison and tuple(poison), progress=WorkerProgress(**progress), names=tuple(names)
    )


def _send(peer: socket.socket, parts: Sequence[bytes | pa.Buffer]) -> None:
    """Send all parts, small ones by one call; raise OSError if the peer has ended."""
    left = peer.sendmsg(parts)
    for part in parts:
        if left < len(part):
            peer.sendall(memoryview(part)[left:])
        left = max(0, left - len(part))


def _received(peer: socket.socket, size: int) -> bytearray | None:
    """Return so many bytes; None if the peer has ended."""
    made = bytearray(size)
    view, filled = memoryview(made), 0
    while filled < size:
        taken = peer.recv_into(view[filled:])
        if not taken:
            return None
        filled += taken
    return made


def _has_dictionary(kind: pa.DataType) -> bool:
    return pa.types.is_dictionary(kind) or any(
        _has_dictionary(kind.field(number).type) for number in range(kind.num_fields)
    )
