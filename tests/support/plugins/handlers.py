"""Handlers that append what they do to a file: their state may be in several processes."""

import json
import os
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.support.plugins.recording import Place, RecordingConsumer, place_of
from tests.support.processes.waiting import wait_until
from tests.support.processes.written_lines import complete_lines
from tidemark import Batch, Delivery, EngineEvent, Handler, SerializedBatch


class HandledRow(NamedTuple):
    """A row as a handler got it."""

    id: int
    note: str | None
    place: Place
    pid: int
    thread: str
    epoch: tuple[int, int]


class FileHandler(Handler[Batch]):
    """Appends each batch to a file, after it has begun with it in another one.

    While `gate` is set and this file does not exist, a call does not return. `refuses`: ids that cannot be handled.
    """

    version = "1"

    def __init__(self, file: Path, gate: Path | None = None, refuses: list[int] | None = None) -> None:
        self._file = file
        self._gate = gate
        self._refuses = refuses or []

    def handle(self, batch: Batch) -> None:
        _append(begun_file(self._file), f"{os.getpid()} {threading.current_thread().name}\n")
        if self._gate is not None:
            wait_until(self._gate.exists, "the gate")
        lines = []
        for change in batch:
            row = change.after or change.before or {}
            if row["id"] in self._refuses:
                raise KeyError(row)
            line = {
                "id": row["id"],
                "note": row["note"],
                "place": place_of(change.position),
                "pid": os.getpid(),
                "thread": threading.current_thread().name,
                "epoch": (batch.epoch.timeline, batch.epoch.number),
            }
            lines.append(json.dumps(line) + "\n")
        _append(self._file, "".join(lines))

    def on_event(self, event: EngineEvent) -> None:
        _append(self._file.with_suffix(".events"), f"{type(event).__name__} {os.getpid()}\n")

    def stop(self) -> None:
        _append(self._file.with_suffix(".stopped"), f"{os.getpid()}\n")


class RecordsHandler(Handler[SerializedBatch]):
    """Appends the values of records to a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def handle(self, batch: SerializedBatch) -> None:
        values = [record.value for record in batch.records if record.value is not None]
        _append(self._file, "".join(f"{value.decode()}\n" for value in values))


class SqliteHandler(Handler[Batch]):
    """Writes what it gets by the consumer of `recording`, which one worker calls."""

    version = "recording"

    def __init__(self, file: Path, record: Path) -> None:
        self._make_consumer = partial(RecordingConsumer, file, record)
        self._consumer: RecordingConsumer | None = None

    def handle(self, batch: Batch) -> None:
        if self._consumer is None:
            self._consumer = self._make_consumer()
            self._consumer.on_assigned(batch.epoch, batch.first)
        self._consumer.on_delivery(Delivery([batch], batch.position))

    def stop(self) -> None:
        if self._consumer is not None:
            self._consumer.stop()


def begun_file(file: Path) -> Path:
    return file.with_suffix(".begun")


def handled_rows(file: Path) -> Sequence[HandledRow]:
    """Return the rows that were handled, in the order of the file."""
    found = []
    for line in complete_lines(file):
        row = json.loads(line)
        found.append(HandledRow(**row | {"place": tuple(row["place"]), "epoch": tuple(row["epoch"])}))
    return found


def _append(file: Path, text: str) -> None:
    """Append by one write: those of several workers do not mix."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
