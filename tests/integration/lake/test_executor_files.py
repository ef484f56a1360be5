"""Runs whose files other processes write leave the lake as runs that this process writes, through crashes as well.

Here the other processes are calls in this one: each run is written in parts, as by several executors.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.support.lakes.lakes import IDENTITY, Crash, CrashAt, folder_of, log_rows, replica_rows
from tests.support.lakes.writers_here import WritersHere
from tests.support.workloads.feeder import RandomTables, feed, make_state
from tidemark.io.host.failpoints import arm
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeBatch
from tidemark.model.position import NO_SEQUENCE
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.landing.feed import Feed
from tidemark.pipeline.landing.portions import Writers, feeds
from tidemark.pipeline.merge import data_files, merge_tasks
from tidemark.pipeline.merge.merge_tasks import MergeTask
from tidemark.pipeline.merge.merging import MergedFiles
from tidemark.pipeline.sinks.executors.executor_files import LogFiles, ReplicaFiles
from tidemark.pipeline.sinks.executors.write_costs import RunWriter
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.steps import PackedRun
from tidemark.wire.outbox import OutboxValue
from tidemark.wire.values import ValueHeader, ValueKind

GROUPS = 40
PORTION = 30_000  # bytes: several groups
ALL = Writers(lambda: True, 1)
LARGE = 8 << 20  # bytes: more than all tables have
FILE_ROWS, TASK_KEYS = 8, 4
CRASHES = (3, 8, 13, 21, 34)  # at which failpoint of each attempt


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "FILE_ROWS_MIN", FILE_ROWS)
    monkeypatch.setattr(data_files, "FILE_ROWS_MAX", FILE_ROWS)
    monkeypatch.setattr(merge_tasks, "TASK_KEYS", TASK_KEYS)


def lake_of(root: Path, writers: WritersHere) -> Lake:
    return Lake(str(root), IDENTITY, shape_of, constants_of, writers=writers)


def given_rows(portion: Feed) -> list[object]:
    return [item.given for _, item in portion.lake_batch.items if isinstance(item, ChangeBatch)]


@pytest.mark.feature("L06")
@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("seed", range(3))
def test_runs_that_others_write_leave_each_change_once_through_crashes(tmp_path: Path, seed: int) -> None:
    folder, crash_points = StateFolder(tmp_path / "state"), iter(CRASHES)
    make_state(folder.root)
    world = RandomTables(seed)
    feed(folder.root, world.groups(GROUPS))
    writers, crashes = WritersHere(), 0
    with OutboxReader.open(folder) as outbox:
        after = NO_SEQUENCE
        while after < outbox.head():
            crash = CrashAt(next(crash_points, 0))
            arm(crash)
            try:
                lake = lake_of(tmp_path / "lake", writers)
                for portion in feeds(outbox, outbox.outbox_id, after, outbox.head(), PORTION, writers=ALL):
                    lake.apply(portion.lake_batch)
            except Crash:
                crashes += 1
            finally:
                arm(None)
            after = OutboxSequence(lake_of(tmp_path / "lake", writers).positions.applied.sequence)
    assert crashes == len(CRASHES)
    assert {LogFiles, ReplicaFiles} <= set(writers.written)
    assert writers.bytes_of[RunWriter.EXECUTORS] > 0
    assert max(writers.merged) > 2, "a merge has several tasks"
    assert writers.rewritten[RunWriter.EXECUTORS] > 0
    for table in world.tables:
        at = folder_of(table.relation)
        assert replica_rows(tmp_path / "lake", at) == table.expected()
        log = log_rows(tmp_path / "lake", at)
        assert len(log) == len({(row["_commit_lsn"], row["_ordinal"]) for row in log}) == table.changes


class CompactedBeside(WritersHere):
    """Writers beside another program, which compacts a replica when a run is merged into it for the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.times = Counter[tuple[str, OutboxSequence]]()
        self.conflicts: set[tuple[str, OutboxSequence]] = set()

    def merge(self, target: ReplicaFiles, run: PackedRun, tasks: Sequence[MergeTask]) -> list[MergedFiles]:
        found = super().merge(target, run, tasks)
        of, table = (target.uri, run.sequence), DeltaTable(target.uri)
        self.times[of] += 1
        if self.times[of] == 1:
            table.optimize.compact()
            there = set(table.file_uris())
            pairs = zip(tasks, found, strict=True)
            removed = {task.added["path"][file].as_py() for task, files in pairs for file in files.removed}
            if any(f"{target.uri}/{path}" not in there for path in removed):
                self.conflicts.add(of)
        return found


@pytest.mark.feature("L06")
@pytest.mark.usefixtures("small_tasks")
def test_a_merge_is_made_again_by_others_after_maintenance_between_its_files_and_its_commit(tmp_path: Path) -> None:
    folder, world, writers = StateFolder(tmp_path / "state"), RandomTables(1), CompactedBeside()
    make_state(folder.root)
    feed(folder.root, world.groups(GROUPS))
    with OutboxReader.open(folder) as outbox:
        lake = lake_of(tmp_path / "lake", writers)
        for portion in feeds(outbox, outbox.outbox_id, NO_SEQUENCE, outbox.head(), PORTION, writers=ALL):
            lake.apply(portion.lake_batch)
    assert writers.conflicts
    assert {writers.times[of] for of in writers.conflicts} == {2}
    assert max(writers.times.values()) == 2, "not more often than the table is compacted"
    assert writers.rewritten[RunWriter.DRIVER] == 0, "no merge is left to this process"
    for table in world.tables:
        assert replica_rows(tmp_path / "lake", folder_of(table.relation)) == table.expected()


def test_without_writers_each_row_is_read_before_the_portion_is_written(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state")
    make_state(folder.root)
    feed(folder.root, RandomTables(1).groups(GROUPS))
    with OutboxReader.open(folder) as outbox:
        given = (outbox, outbox.outbox_id, NO_SEQUENCE, outbox.head())
        (read,), (left,) = feeds(*given), feeds(*given, writers=Writers(lambda: False, 1))
        (unread,) = feeds(*given, writers=ALL)
    writers = WritersHere()
    lake_of(tmp_path / "lake", writers).apply(read.lake_batch)
    assert {writer for writer, found in writers.bytes_of.items() if found} == {RunWriter.DRIVER}
    assert [number for number, _ in unread.lake_batch.items] == [number for number, _ in read.lake_batch.items]
    assert [repr(type(item)) for _, item in left.lake_batch.items] == [
        repr(type(item)) for _, item in read.lake_batch.items
    ]
    assert unread.row_count == read.row_count > 0
    assert unread.byte_count == read.byte_count


class CountedOutbox(OutboxReader):
    """An outbox that counts the requests that a server would get for headers, plans and values."""

    requests: Counter[str]

    def headers(self, after: OutboxSequence, upto: OutboxSequence) -> list[ValueHeader]:
        self.requests["headers"] += 1
        return super().headers(after, upto)

    def plan(self, after: OutboxSequence, bytes_max: int) -> OutboxSequence:
        self.requests["plan"] += 1
        return super().plan(after, bytes_max)

    def read(
        self, after: OutboxSequence, upto: OutboxSequence, wanted: Callable[[ValueHeader], bool] | None = None
    ) -> Iterator[OutboxValue]:
        self.requests["read"] += 1
        return super().read(after, upto, wanted)


class ReadTimes:
    """Collects what a lake's process reports about its reads."""

    def __init__(self) -> None:
        self.byte_counts: list[int] = []

    def __call__(self, byte_count: int, seconds: float) -> None:
        assert seconds > 0
        self.byte_counts.append(byte_count)


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[CountedOutbox]:
    folder = StateFolder(tmp_path / "state")
    make_state(folder.root)
    feed(folder.root, RandomTables(1).groups(GROUPS))
    with CountedOutbox.open(folder) as outbox:
        outbox.requests = Counter()
        yield outbox


def test_a_small_portion_is_read_without_headers(counted: CountedOutbox) -> None:
    (portion,) = feeds(counted, counted.outbox_id, NO_SEQUENCE, counted.head(), writers=Writers(lambda: True, LARGE))
    assert all(isinstance(given, pa.RecordBatch) for given in given_rows(portion))
    assert counted.requests == {"plan": 1, "read": 1}


def test_a_group_with_more_bytes_than_a_small_portion_is_left_unread(counted: CountedOutbox) -> None:
    """The plan of a portion has at least one group, of any size."""
    end = counted.plan(NO_SEQUENCE, 1)
    given = (counted, counted.outbox_id, NO_SEQUENCE, end)
    (portion,) = feeds(*given, writers=ALL)
    assert given_rows(portion)
    assert not any(isinstance(given, pa.RecordBatch) for given in given_rows(portion))
    (read,) = feeds(*given, writers=Writers(lambda: False, 1))
    assert all(isinstance(given, pa.RecordBatch) for given in given_rows(read))


def test_the_unread_values_of_a_table_are_read_by_one_request_when_they_are_needed(counted: CountedOutbox) -> None:
    given = (counted, counted.outbox_id, NO_SEQUENCE, counted.head())
    (unread,), (read,) = feeds(*given, writers=ALL), feeds(*given)
    counted.requests.clear()
    tables = set()
    for (_, item), (_, expected) in zip(unread.lake_batch.items, read.lake_batch.items, strict=True):
        if isinstance(item, ChangeBatch) and isinstance(expected, ChangeBatch):
            tables.add(item.relation.oid)
            assert item.rows.equals(expected.rows)
            assert item.rows.equals(expected.rows), "the second time too"
    assert len(tables) > 1
    assert counted.requests == {"read": len(tables)}


@pytest.mark.parametrize("bytes_min", [1, LARGE], ids=["left unread", "read ahead"])
def test_the_time_of_reading_is_recorded_with_the_bytes_whenever_rows_are_read(
    counted: CountedOutbox, bytes_min: int
) -> None:
    times, headers = ReadTimes(), counted.headers(NO_SEQUENCE, counted.head())
    writers = Writers(lambda: True, bytes_min, record_read=times)
    (portion,) = feeds(counted, counted.outbox_id, NO_SEQUENCE, counted.head(), writers=writers)
    batches = [item for _, item in portion.lake_batch.items if isinstance(item, ChangeBatch)]
    of_rows = sum(header.payload_length for header in headers if header.kind is ValueKind.BATCH)
    of_others = sum(header.payload_length for header in headers) - of_rows
    assert times.byte_counts == [of_others + (of_rows if bytes_min == LARGE else 0)]
    times.byte_counts.clear()
    for batch in batches * 2:
        assert batch.rows.num_rows == batch.row_count
    unread = {batch.relation.oid for batch in batches if not isinstance(batch.given, pa.RecordBatch)}
    assert len(times.byte_counts) == len(unread)
    assert sum(times.byte_counts) == (of_rows if unread else 0)
