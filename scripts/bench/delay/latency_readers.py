"""The readers of the latency benchmark, each as a separate process that reports the arrival time of each row.

The command is `python -m scripts.bench.delay.latency_readers` with one of these:

    tidemark TRIAL DSN STATE HOW         the sidecar's capture with a custom consumer; HOW: batched or unbatched
    pg_recvlogical TRIAL COMMAND...      its standard output, from a pipe
    stream TRIAL DSN                     Tidemark's client of the walsender alone
    opened TRIAL DSN                     the same, and a batch of one row is read for each WAL

Each prints "ready" when it reads the row READY of its trial, and ends when it reads END, with a line of JSON: row
numbers and arrival times on the monotonic clock, which is the same in all processes of a machine. Arrival is the
moment when the row's number is a Python integer, extracted from the consumer's record batch or from pgoutput's message.
For "stream" it is the arrival of the WAL that contains the row's commit, before anything is decoded: no reader of the
physical stream in this process can be faster. "opened" then reads a prepared batch as the consumer of "tidemark" does:
this is the latency of a decoder that takes no time.
"""

import json
import os
import resource
import select
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from tidemark.io.host.log_output import configure_logs, get_log
from tidemark.io.node.replication import WalStream
from tidemark.io.process.config import CaptureConfig, Config, CopyConfig, DeliverConfig, SelectConfig
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import META_FIELDS, ChangeBatch, ChangeGroup, RowsMessage, batch_schema
from tidemark.runtime.capture.capture import Capture
from tidemark.runtime.capture.capture_settings import CaptureSettings
from tidemark.runtime.capture.wal_source import WalSettings, from_node
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.daemon.epoch_run import put_latency_first
from tidemark.runtime.delivery.consumers import NullConsumer
from tidemark.wal.page import Framer, RecordBlock
from tidemark.wal.rmgr import RM_HEAP, RM_XACT
from tidemark.wal.segments import WalSlice, first_page_lsn

TABLE = "stamps"
DATABASE = "postgres"
READY, END = -1, -2
POLL_S = 0.2
STOP_S = 10
TRIAL_S_MAX = 120.0
PIPE_BYTES = 1 << 16
COLUMNS = pa.struct({"trial": pa.int32(), "id": pa.int64(), "stamp_ns": pa.int64(), "filler": pa.string()})
TRIAL_COLUMN, ROW_COLUMN = struct.Struct("<i4x"), struct.Struct("<q")  # the first two columns, as stored
# pgoutput, protocol version 1: bytes of a message by its letter, and of an INSERT before its columns
BEGIN_BYTES, COMMIT_BYTES, INSERT_BYTES = 21, 26, 8


class Arrivals:
    """The arrivals of one trial."""

    def __init__(self, trial: int) -> None:
        self.trial = trial
        self.ended = False
        self.rows: list[int] = []
        self.times_ns: list[int] = []
        self._cpu_us_before = 0

    def take(self, trial: int, row: int, arrived_ns: int) -> None:
        """Record a row; ignore rows of other trials, which were committed while no reader ran."""
        if trial != self.trial:
            return
        if row == READY:
            self._cpu_us_before = _cpu_us(resource.RUSAGE_SELF)
            print("ready", flush=True)
        elif row == END:
            self.ended = True
        else:
            self.rows.append(row)
            self.times_ns.append(arrived_ns)

    def report(self) -> None:
        """Print all arrivals, and the CPU time since READY of this process and its children."""
        cpu_us = _cpu_us(resource.RUSAGE_SELF) - self._cpu_us_before + _cpu_us(resource.RUSAGE_CHILDREN)
        print(json.dumps({"rows": self.rows, "times_ns": self.times_ns, "cpu_us": [cpu_us]}), flush=True)


def _cpu_us(whose: int) -> int:
    usage = resource.getrusage(whose)
    return int((usage.ru_utime + usage.ru_stime) * 1e6)


class ArrivalConsumer(NullConsumer):
    """Records arrivals and confirms everything."""

    def __init__(self, arrivals: Arrivals) -> None:
        super().__init__()
        self._arrivals = arrivals

    def on_events(self, groups: Iterator[ChangeGroup]) -> bool:
        """Record the rows of all available groups."""
        for group in groups:
            for item in group.items:
                if isinstance(item, ChangeBatch) and item.relation.name == TABLE:
                    trials, rows = numbers(item.rows)
                    arrived_ns = time.monotonic_ns()
                    for trial, row in zip(trials, rows, strict=True):
                        self._arrivals.take(trial, row, arrived_ns)
        return True


def numbers(rows: pa.RecordBatch) -> tuple[list[int], list[int]]:
    """Return trial and number of each row."""
    after = rows.column("_after")
    return after.field("trial").to_pylist(), after.field("id").to_pylist()


def one_row() -> RowsMessage:
    """Return a batch of one row, as the decoder creates it."""
    schema = batch_schema(COLUMNS)
    said = {field.name: "i" if field.type == pa.string() else 0 for field in META_FIELDS if not field.nullable}
    row = {**said, "_after": {"trial": 0, "id": 0, "stamp_ns": 0, "filler": ""}}
    message = pa.RecordBatch.from_pylist([row], schema).serialize().to_pybytes()
    return RowsMessage(schema, message, 1, (1, 0, 0, 1, 0, 0))


def config_of(dsn: str, *, batched: bool = True) -> Config:
    """Return the capture's configuration: all defaults, no first copy; not `batched`: without `rate_max`."""
    return Config(
        capture=CaptureConfig(dsn=dsn),
        select=SelectConfig(databases=(DATABASE,)),
        copy=CopyConfig(enabled=False),
        deliver=DeliverConfig() if batched else DeliverConfig(rate_max=0),
    )


def read_ours(arrivals: Arrivals, dsn: str, state: Path, *, batched: bool) -> None:
    """Run the sidecar's capture, without its sockets, until the end of the trial."""
    configure_logs("json", "error")
    folder = StateFolder(state)
    with StateStore.open(folder) as store, RoleLock.acquire(folder, "sidecar") as lock:
        epoch = store.begin_epoch(lock.owner)
        metrics = Metrics(store.identity.capture)
        consumer = ArrivalConsumer(arrivals)
        config, context = config_of(dsn, batched=batched), CaptureContext(store, metrics, get_log("bench"))
        make_wal_source = partial(from_node, context, WalSettings.of(config, store.identity.segment_bytes))
        capture = Capture(context, CaptureSettings.of(config), epoch, make_wal_source, consumer=consumer)
        capture.start()
        put_latency_first()
        deadline = time.monotonic() + TRIAL_S_MAX
        try:
            while not arrivals.ended:
                if error := capture.poll():
                    raise error
                if time.monotonic() > deadline:
                    raise SystemExit("the trial did not end")
                time.sleep(POLL_S)
        finally:
            capture.stop()


def read_peer(arrivals: Arrivals, command: Sequence[str]) -> None:
    """Run pg_recvlogical until the end of the trial."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        pending = bytearray()
        deadline = time.monotonic() + TRIAL_S_MAX
        try:
            while not arrivals.ended:
                if not select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))[0]:
                    raise SystemExit("the trial did not end")
                chunk = os.read(process.stdout.fileno(), PIPE_BYTES)
                if not chunk:
                    raise SystemExit("pg_recvlogical ended early")
                pending += chunk
                del pending[: _take_messages(pending, arrivals)]
        finally:
            process.terminate()
            process.stdout.close()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def read_stream(arrivals: Arrivals, dsn: str, do: Callable[[], object] = object) -> None:
    """Receive WAL until the end of the trial, calling `do` first; its content is read after the time is recorded."""
    with WalStream(dsn) as stream:
        here = stream.identify()
        framer = Framer(stream.format)
        stream.start(first_page_lsn(here.flush_lsn), here.timeline)
        uncommitted: dict[int, list[int]] = {}
        deadline = time.monotonic() + TRIAL_S_MAX
        while not arrivals.ended:
            if time.monotonic() > deadline:
                raise SystemExit("the trial did not end")
            event = stream.read(POLL_S)
            if not isinstance(event, WalSlice):
                continue
            do()
            arrived_ns = time.monotonic_ns()
            framer.feed(event.start_lsn, event.data)
            while isinstance(block := framer.next_block(), RecordBlock):
                _take_records(block, uncommitted, arrivals, arrived_ns)


def _take_records(block: RecordBlock, uncommitted: dict[int, list[int]], arrivals: Arrivals, arrived_ns: int) -> None:
    """Find the trial's rows by their bytes, and return them with the end of their transaction."""
    begins_row = TRIAL_COLUMN.pack(arrivals.trial)
    for index in range(len(block)):
        xid, begin = block.xids[index], block.offsets[index]
        if block.rmgrs[index] == RM_XACT:
            for row in uncommitted.pop(xid, ()):
                arrivals.take(arrivals.trial, row, arrived_ns)
        elif block.rmgrs[index] == RM_HEAP:
            at = block.linear.find(begins_row, begin, begin + block.lengths[index])
            if at >= 0:
                (row,) = ROW_COLUMN.unpack_from(block.linear, at + TRIAL_COLUMN.size)
                uncommitted.setdefault(xid, []).append(row)


def _take_messages(pending: bytearray, arrivals: Arrivals) -> int:
    """Process the complete messages, each followed by a newline; return their number of bytes."""
    at = 0
    while True:
        end = _message_end(pending, at)
        if end is None or end >= len(pending):
            return at
        if pending[end] != ord("\n"):
            raise SystemExit(f"pgoutput message {pending[at:end]!r} was misread")
        if pending[at] == ord("I"):
            trial, row = (int(value) for value in _columns(pending, at + INSERT_BYTES, 2))
            arrivals.take(trial, row, time.monotonic_ns())
        at = end + 1


def _message_end(pending: bytearray, at: int) -> int | None:
    """Return the end of the message at `at`; None if it is not complete."""
    if at >= len(pending):
        return None
    letter = chr(pending[at])
    if letter in "BC":
        return at + (BEGIN_BYTES if letter == "B" else COMMIT_BYTES)
    if letter == "I":
        return _insert_end(pending, at)
    if letter == "R":
        return _relation_end(pending, at)
    raise SystemExit(f"pgoutput sent {letter!r}, which this table cannot give")


def _insert_end(pending: bytearray, at: int) -> int | None:
    if at + INSERT_BYTES > len(pending):
        return None
    end = at + INSERT_BYTES
    for _ in range(int.from_bytes(pending[end - 2 : end], "big")):
        if end + 5 > len(pending):
            return None
        end += 5 + int.from_bytes(pending[end + 1 : end + 5], "big")
    return end


def _relation_end(pending: bytearray, at: int) -> int | None:
    """Letter, OID, two names, identity, column count; a column is flag, name, type, modifier."""
    try:
        end = pending.index(0, pending.index(0, at + 5) + 1) + 4
        if end > len(pending):
            return None
        for _ in range(int.from_bytes(pending[end - 2 : end], "big")):
            end = pending.index(0, end + 1) + 9
    except ValueError:
        return None
    return end


def _columns(pending: bytearray, at: int, count: int) -> Iterator[bytes]:
    for _ in range(count):
        size = int.from_bytes(pending[at + 1 : at + 5], "big")
        yield bytes(pending[at + 5 : at + 5 + size])
        at += 5 + size


def main() -> None:
    """Read one trial."""
    reader, trial, *rest = sys.argv[1:]
    arrivals = Arrivals(int(trial))
    if reader == "tidemark":
        dsn, state, how = rest
        read_ours(arrivals, dsn, Path(state), batched=how == "batched")
    elif reader == "stream":
        read_stream(arrivals, rest[0])
    elif reader == "opened":
        given = one_row()
        read_stream(arrivals, rest[0], lambda: numbers(given.unpacked()))
    else:
        read_peer(arrivals, rest)
    arrivals.report()


if __name__ == "__main__":
    main()
