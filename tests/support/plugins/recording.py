"""The consumer of the example package, with a record of what it was called with."""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tidemark_sqlite import SqliteConsumer
from tidemark_sqlite.offsets import SqliteOffsetsConsumer

from tests.support.processes.written_lines import complete_lines
from tidemark import Batch, Delivery, Epoch, Partition, Position
from tidemark.model.lsn import Lsn, SystemIdentifier, TimelineId

MERGED = Partition(SystemIdentifier(7))  # the second stream of a `MergingConsumer`
Place = tuple[int, int, int]  # timeline, commit LSN, ordinal


class DeliveredRun(NamedTuple):
    """What one capture delivered."""

    epoch: tuple[int, int]
    start: Place
    positions: list[Place]  # of its rows, in the order of delivery
    confirmed: Place  # the last row of which it is sure: a delivery came after it


class RecordingConsumer(SqliteConsumer):
    """Appends each call to a file before it is made."""

    version = "recording"

    def __init__(self, file: Path, record: Path) -> None:
        super().__init__(file)
        self._record = record

    def on_assigned(self, epoch: Epoch, start: Position) -> None:
        self._append({"epoch": [epoch.timeline, epoch.number], "start": place_of(start)})
        super().on_assigned(epoch, start)

    def on_delivery(self, delivery: Delivery) -> bool:
        batches = [item for item in delivery.items if isinstance(item, Batch)]
        self._append({"positions": [place_of(each) for batch in batches for each in batch.positions()]})
        return super().on_delivery(delivery)

    def _append(self, line: dict[str, object]) -> None:
        with self._record.open("a") as file:
            file.write(json.dumps(line) + "\n")


class DescribingConsumer(SqliteConsumer):
    """Appends everything that it receives to a file, with the versions of tables."""

    def __init__(self, file: Path, described: Path) -> None:
        super().__init__(file)
        self._described = described

    def on_delivery(self, delivery: Delivery) -> bool:
        with self._described.open("a") as file:
            file.writelines(f"{item!r}\n" for item in delivery.items)
        return super().on_delivery(delivery)


class PickyConsumer(SqliteConsumer):
    """Cannot handle rows with some values of `id`."""

    def __init__(self, file: Path, refuses: list[int]) -> None:
        super().__init__(file)
        self._refuses = frozenset(refuses)

    def on_delivery(self, delivery: Delivery) -> bool:
        for item in delivery.items:
            for change in item if isinstance(item, Batch) else ():
                if change.after is not None and change.after["id"] in self._refuses:
                    raise KeyError(change.after)
        return super().on_delivery(delivery)


class MergingConsumer(SqliteOffsetsConsumer):
    """Merges a second stream with a position for each row.

    A file with the name of a call and a number of rows kills the process in that call, once the target has that many.
    """

    def __init__(self, file: Path, kill: Path) -> None:
        super().__init__(file)
        self._kill = kill

    def offsets(self, positions: Mapping[Partition, Position]) -> Mapping[Partition, Position]:
        assert self._database is not None
        (rows,) = self._database.execute("SELECT count(*) FROM changes").fetchone()
        self._end_in("offsets", rows)
        return {**positions, MERGED: Position(TimelineId(1), Lsn(rows), 0)}

    def update_offsets(self, positions: Mapping[Partition, Position]) -> Mapping[Partition, Position]:
        returned = super().update_offsets(positions)
        if MERGED in returned:
            self._end_in("update_offsets", returned[MERGED].commit_lsn)
        return returned

    def _end_in(self, call: str, rows: int) -> None:
        if self._kill.exists() and self._kill.read_text() == f"{call} {rows}":
            self._kill.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def place_of(position: Position) -> Place:
    return (position.timeline, position.commit_lsn, position.ordinal)


def recorded_runs(record: Path) -> list[DeliveredRun]:
    """Return the runs in a record; a kill may have cut its last line."""
    runs: list[DeliveredRun] = []
    for line in complete_lines(record):
        found = json.loads(line)
        if "epoch" in found:
            start = tuple(found["start"])
            runs.append(DeliveredRun(tuple(found["epoch"]), start, [], start))
        else:
            run = runs[-1]
            runs[-1] = run._replace(confirmed=max([run.start, *run.positions]))
            run.positions.extend(tuple(each) for each in found["positions"])
    return runs
