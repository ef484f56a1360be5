"""The pipeline on one Spark for all these tests: restarts, lost checkpoints, refusals."""

import json
import shutil
import threading
from collections import Counter
from enum import Enum
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.support.lakes.aged_logs import LOG_FOLDER, age, lengthen, versions
from tests.support.lakes.lakes import CAPTURE, IDENTITY, folder_of, log_rows, replica_rows
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.processes.spark import land
from tests.support.workloads.feeder import RandomTables, feed, make_state
from tidemark.io.host.failpoints import arm
from tidemark.io.process.metrics import CAPTURE_LABEL
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import Fenced
from tidemark.model.lsn import INVALID_OID, Oid
from tidemark.model.position import NO_SEQUENCE, Sequence
from tidemark.pipeline.delta_log.log_cleanup import KEEP_S, LISTED_MAX
from tidemark.pipeline.driver import runner
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.positions.positions import FOLDER as POSITIONS
from tidemark.pipeline.lake.tables.table_errors import TableFenced
from tidemark.pipeline.landing.late_begin import LakeGone
from tidemark.pipeline.landing.metrics import TABLES_DIVERGED
from tidemark.pipeline.landing.portions import feeds
from tidemark.pipeline.landing.progress import PipelineProgress
from tidemark.pipeline.sinks.lake import Lake

BATCH_BYTES = 200_000
SEED = 11
GROUPS = 40
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Place:
    """A state folder, a lake, and a pipeline between them."""

    def __init__(self, root: Path) -> None:
        self.state, self.lake, self.checkpoint = root / "state", root / "lake", root / "checkpoint"

    def run(self, spark: SparkSession, reader: str = "spark") -> PipelineProgress:
        """Write the values of the outbox into the lake."""
        folder = StateFolder(self.state)
        return land(spark, folder, self.lake, self.checkpoint, reader=reader, batch_bytes=BATCH_BYTES)

    def held(self) -> Sequence:
        return Lake(str(self.lake), IDENTITY, shape_of, constants_of).positions.applied.sequence

    def check(self, groups: int = GROUPS, *, besides: Oid = INVALID_OID) -> None:
        """Check that the lake equals the fed tables; `besides` is a table that has only a log."""
        world = RandomTables(SEED)
        for _ in world.groups(groups):
            pass
        for table in world.tables:
            folder = folder_of(table.relation)
            assert table.oid == besides or replica_rows(self.lake, folder) == table.expected()
            log = log_rows(self.lake, folder)
            assert len(log) == len({(row["_commit_lsn"], row["_ordinal"]) for row in log}) == table.changes


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    make_state(made.state)
    return made


@pytest.fixture(autouse=True)
def quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "RESTART_WAIT_S", 0.0)


def test_the_outbox_is_written_to_the_lake_and_confirmed(spark: SparkSession, place: Place) -> None:
    feed(place.state, RandomTables(SEED).groups(GROUPS))
    place.run(spark)
    place.check()
    with StateStore.open(StateFolder(place.state)) as store:
        view = store.view()
        assert view.readers["spark"].applied == view.ledger.head
        assert view.readers["spark"].replayable == view.ledger.head


@pytest.mark.feature("L01")
def test_a_table_that_another_writer_changed_stops_alone_and_is_named(spark: SparkSession, place: Place) -> None:
    groups = list(RandomTables(SEED).groups(GROUPS))
    feed(place.state, groups[: GROUPS // 2])
    place.run(spark)
    changed, *others = RandomTables(SEED).tables
    replica = str(place.lake / folder_of(changed.relation) / "replica")
    DeltaTable(replica).delete()
    feed(place.state, groups[GROUPS // 2 :])
    metrics = place.run(spark).metrics.registry
    assert DeltaTable(replica).to_pyarrow_table().num_rows == 0
    place.check(besides=changed.oid)
    with StateStore.open(StateFolder(place.state)) as store:
        view = store.view()
        assert view.readers["spark"].applied == view.ledger.head
    assert others
    assert metrics.get_sample_value(TABLES_DIVERGED, {CAPTURE_LABEL: CAPTURE}) == 1
    reported = json.loads(succeeded(cdcctl("status", "--json", "--state", place.state)).out)["lake"]["spark"]
    ((line,), name) = reported["not_written"], changed.relation.qualified_name
    assert line.startswith(f"{name} replica: diverged after ")
    assert "DELETE" in line


@pytest.mark.feature("X03")
def test_a_deleted_checkpoint_changes_nothing(spark: SparkSession, place: Place) -> None:
    groups = list(RandomTables(SEED).groups(GROUPS))
    feed(place.state, groups[: GROUPS // 2])
    place.run(spark)
    shutil.rmtree(place.checkpoint)
    feed(place.state, groups[GROUPS // 2 :])
    place.run(spark)
    place.check()


@pytest.mark.feature("X03")
def test_a_checkpoint_that_is_ahead_of_the_lake_skips_nothing(spark: SparkSession, place: Place) -> None:
    groups = list(RandomTables(SEED).groups(GROUPS))
    feed(place.state, groups[: GROUPS // 2])
    place.run(spark)
    feed(place.state, groups[GROUPS // 2 :])
    with OutboxReader.open(StateFolder(place.state)) as outbox:
        ends = [header.sequence for header in outbox.headers(place.held(), outbox.head()) if header.ends_group]
    (query,) = place.checkpoint.iterdir()
    for log in ("offsets", "commits"):
        newest = max((query / log).iterdir(), key=lambda file: int(file.name))
        text = newest.read_text()
        following = newest.with_name(str(int(newest.name) + 1))
        following.write_text(text.replace(f'"sequence": {place.held()}', f'"sequence": {ends[2]}'))
        assert log != "offsets" or text != following.read_text()
    place.run(spark)
    place.check()


def test_a_batch_that_fails_at_any_point_is_repeated_and_written_once(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(place.state, RandomTables(SEED).groups(GROUPS))
    failures: Counter[Enum] = Counter()

    def fail_once(point: Enum) -> None:
        failures[point] += 1
        if isinstance(point, Failpoint) and failures[point] == 1:  # failpoints of the state are hit, too
            raise OSError(f"failing once at {point.value}")

    arm(fail_once)
    monkeypatch.setattr(runner, "RESTARTS_MAX", len(Failpoint))
    try:
        place.run(spark)
    finally:
        arm(None)
    assert failures[Failpoint.REPLICA_CHANGED] > 1
    assert failures[Failpoint.CONFIRMED] > 1
    place.check()


def test_a_portion_that_always_fails_ends_the_pipeline_although_an_earlier_one_is_written(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(place.state, RandomTables(SEED).groups(GROUPS))
    monkeypatch.setattr(runner, "feeds", partial(feeds, bytes_max=BATCH_BYTES // 4))
    monkeypatch.setattr(runner, "RESTARTS_MAX", 2)
    begun: list[Sequence] = []

    def fail_from_the_second_on(point: Enum) -> None:
        if point is Failpoint.BATCH_RECEIVED:
            begun.append(place.held())
            if begun[-1] != NO_SEQUENCE:
                raise OSError("failing for ever")

    arm(fail_from_the_second_on)
    try:
        with pytest.raises(runner.QueryFailed, match="3 times in a row"):
            place.run(spark)
    finally:
        arm(None)
    landed = place.held()
    assert landed > NO_SEQUENCE
    assert begun == [NO_SEQUENCE, landed, landed, landed]
    place.run(spark)
    place.check()


def test_a_new_outbox_continues_the_numbers_of_a_lost_one(spark: SparkSession, place: Place) -> None:
    groups = list(RandomTables(SEED).groups(GROUPS))
    feed(place.state, groups[: GROUPS // 2])
    place.run(spark)
    shutil.move(place.state, place.state.with_name("lost"))
    make_state(place.state, "0c0d", after=place.held())
    feed(place.state, groups[GROUPS // 3 :])  # which the lake has in part
    place.run(spark)
    place.check()


@pytest.mark.feature("X11")
@pytest.mark.feature("X08")
def test_a_second_writer_ends_the_pipeline_for_good(spark: SparkSession, place: Place) -> None:
    feed(place.state, RandomTables(SEED).groups(GROUPS))

    def overtake(point: Enum) -> None:
        if point is Failpoint.TABLES_DONE:
            arm(None)
            raise TableFenced("a table", "by this test")

    arm(overtake)
    try:
        with pytest.raises(Fenced, match="another writer"):
            place.run(spark)
    finally:
        arm(None)
    place.run(spark)
    place.check()


def test_a_lake_that_was_deleted_without_its_checkpoint_is_recreated_completely(
    spark: SparkSession, place: Place
) -> None:
    groups = list(RandomTables(SEED).groups(GROUPS))
    feed(place.state, groups[: GROUPS // 2])
    with OutboxReader.open(StateFolder(place.state)) as outbox:
        outbox.register("another")  # so that the outbox keeps all values
    place.run(spark)
    shutil.rmtree(place.lake)
    feed(place.state, groups[GROUPS // 2 :])
    place.run(spark)
    place.check()


def test_a_deleted_lake_that_cannot_be_recreated_is_an_error_and_not_an_incomplete_lake(
    spark: SparkSession, place: Place
) -> None:
    groups = list(RandomTables(SEED).groups(GROUPS))
    for third in range(3):
        feed(place.state, groups[third * GROUPS // 3 : (third + 1) * GROUPS // 3])  # the last trims
        if third < 2:
            place.run(spark)
    shutil.rmtree(place.lake)
    with pytest.raises(LakeGone, match="the lake was deleted or is not mounted"):
        place.run(spark)


def test_a_second_reader_fills_a_separate_lake(spark: SparkSession, place: Place) -> None:
    with OutboxReader.open(StateFolder(place.state)) as outbox:
        outbox.register("second")
    feed(place.state, RandomTables(SEED).groups(GROUPS))
    place.run(spark)
    place.check()
    place.lake = place.lake.with_name("second lake")
    place.run(spark, reader="second")
    place.check()


def test_a_stream_larger_than_the_outbox_flows_through_it(spark: SparkSession, tmp_path: Path) -> None:
    small = Place(tmp_path / "small")
    groups = list(RandomTables(SEED).groups(GROUPS))
    make_state(small.state, bytes_max=1 << 20)
    fed = threading.Event()
    failures: list[BaseException] = []

    def feeding() -> None:
        try:
            feed(small.state, groups)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)
        fed.set()

    with OutboxReader.open(StateFolder(small.state)) as outbox:
        outbox.register("spark")
    feeder = threading.Thread(target=feeding)
    feeder.start()
    while not fed.is_set():
        small.run(spark)
    feeder.join()
    assert not failures, failures
    small.run(spark)
    small.check()


@pytest.mark.feature("L10")
def test_the_pipeline_keeps_the_commit_logs_of_a_lake_short(spark: SparkSession, place: Place) -> None:
    groups = list(RandomTables(SEED).groups(GROUPS))
    feed(place.state, groups[: GROUPS // 2])
    place.run(spark)
    tables = [path.parent for path in place.lake.rglob(LOG_FOLDER)]
    for table in tables:
        lengthen(table, 150, after_checkpoint=20)
        age(table, KEEP_S + 60)
    feed(place.state, groups[GROUPS // 2 :])
    place.run(spark)
    cleaned = [table for table in tables if versions(table)[0] > 100]
    assert place.lake / POSITIONS in cleaned
    assert len(cleaned) >= LISTED_MAX
    place.check()


def test_the_format_is_found_without_being_registered(spark: SparkSession, place: Place) -> None:
    feed(place.state, RandomTables(SEED).groups(3))
    rows = spark.readStream.format("tidemark").option("state", str(place.state)).load()
    assert rows.columns == ["sequence", "value"]
