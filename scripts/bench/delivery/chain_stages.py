"""The stages after the decoder, each as a repeatable trial: outbox, Spark source, first copy."""

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from tidemark_ctl.output.printing import PrintContext

from scripts.bench.measuring.commands import Cost
from scripts.bench.measuring.workloads import Recording
from tests.support.processes.captures import config_for
from tests.support.servers.postgres import SUPERUSER, Cluster
from tests.support.workloads.feeder import make_state
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.decode.transactions.reorder_buffer.committed_run import CommittedRun
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.engine.selection import Selection
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.host.log_output import get_log
from tidemark.io.process.lake_config import LakeConfig, LakeTableConfig, Written
from tidemark.io.process.metrics import Metrics
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.readers.state_capture import StateCapture
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeBatch, ChangeGroup
from tidemark.model.lsn import Oid
from tidemark.model.position import NO_SEQUENCE, Epoch
from tidemark.model.table_name import DEFAULT_SCHEMA
from tidemark.pipeline.driver.capture_place import StatePlace
from tidemark.pipeline.driver.offset_log import OffsetLog
from tidemark.pipeline.driver.runner import BATCH_BYTES, Pipeline
from tidemark.pipeline.landing.delta_landing import DeltaLanding
from tidemark.pipeline.landing.landing import LandingParts
from tidemark.pipeline.landing.metrics import PipelineMetrics
from tidemark.pipeline.landing.progress import PipelineProgress
from tidemark.pipeline.landing.settings import Settings
from tidemark.pipeline.source.options import FORMAT
from tidemark.runtime.first_copy.copy_settings import CopySettings
from tidemark.runtime.first_copy.first_copy import FirstCopy
from tidemark.runtime.replay.history_start import LsnRange, begin_from_history
from tidemark.runtime.replay.offline import decode_archive
from tidemark.runtime.seed.initialise import initialise
from tidemark.wire.items import decode_item
from tidemark.wire.outbox import encode_group
from tidemark.wire.state.copy_progress import CopyProgress
from tidemark.wire.state.process_log import Owner
from tidemark.wire.values import ValueKind

OUTBOX_BYTES = 4 << 30
OWNER = Owner("sidecar", "bench", "boot", 1, 1)
SLICE_ROWS = 65536
READER = "bench"
BATCHES_MIN = 4  # Spark batches in a trial: the first one is not counted
GONE_S, POLL_S = 10.0, 0.005


def measured(work: Callable[[], int], rows: int) -> Cost:
    """Return the cost of `work` on this number of rows, in this process and its children."""
    before_s, started = _cpu_s(), time.perf_counter()
    found = work()
    cost = Cost(time.perf_counter() - started, _cpu_s() - before_s)
    if found != rows:
        raise SystemExit(f"{found} rows came, of {rows}")
    return cost


def _cpu_s() -> float:
    """Return the CPU seconds of this process and its children, except the servers of the measurement."""
    own = os.times()
    started = (child for child in psutil.Process().children() if child.name() != "postgres")
    return own.user + own.system + own.children_user + own.children_system + sum(map(_cpu_s_of, started))


def _cpu_s_of(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and its descendants, including ended ones that were waited for."""
    with suppress(psutil.Error):
        times = process.cpu_times()
        own = times.user + times.system + times.children_user + times.children_system
        return float(own) + sum(map(_cpu_s_of, process.children()))
    return 0.0


def decoded(recording: Recording) -> list[ChangeGroup]:
    """Decode a recording to groups, as `cdcctl decode` does."""
    folder = StateFolder(recording.state)
    with StateStore.open(folder) as store:
        view = store.view()
    start = begin_from_history(view, folder.history, recording.begin, memory_bytes=OUTBOX_BYTES, spill=None)
    builder = GroupBuilder(
        PrintContext.of(view.identity.server_major, start.mirrors, start.databases, start.types).dialects
    )
    start.decoding.decoder.select_only(builder.selects)
    segments = ArchiveFolder(recording.archive, of=view.identity.system_identifier)
    groups: list[ChangeGroup] = []
    for found in decode_archive(segments, start, LsnRange(recording.begin, recording.end), print):
        if isinstance(found, CommittedTransaction):
            groups += builder.add_transaction(found)
        elif isinstance(found, CommittedRun):
            groups += builder.add_run(found)
    last = builder.flush()
    return [*groups, *([last] if last is not None else [])]


def rows_of(groups: Sequence[ChangeGroup]) -> int:
    """Return the number of rows in groups."""
    return sum(group.row_count for group in groups)


class Outbox:
    """An outbox that is written and read; it is recreated for each trial of writing."""

    def __init__(self, folder: Path, groups: Sequence[ChangeGroup]) -> None:
        self.state = folder / "outbox"
        self._groups = groups

    def write(self) -> int:
        """Write each group in a durable transaction; return the number of rows."""
        with StateStore.open(StateFolder(self.state)) as store:
            epoch = store.begin_epoch(OWNER)
            for group in self._groups:
                encoded = encode_group(group)
                with store.transaction(epoch) as transaction:
                    transaction.apply_confirmations()
                    transaction.deliver(encoded)
        return rows_of(self._groups)

    def create_outbox(self) -> None:
        """Create an empty outbox."""
        shutil.rmtree(self.state, ignore_errors=True)
        make_state(self.state, bytes_max=OUTBOX_BYTES)

    def read(self) -> int:
        """Read and decode all values; return the number of rows."""
        count = 0
        with OutboxReader.open(StateFolder(self.state)) as outbox:
            for value in outbox.read(NO_SEQUENCE, outbox.head()):
                if value.header.kind is ValueKind.BATCH:
                    item = decode_item(value.header.kind, value.payload)
                    assert isinstance(item, ChangeBatch), item
                    count += item.rows.num_rows
        return count


class TypedRows:
    """The rows of an outbox by Spark's format, as a batch query of its only table."""

    def __init__(self, spark: SparkSession, chosen: Sequence[str] = (), **options: str) -> None:
        query = spark.read.format(FORMAT).options(table=f"{DEFAULT_SCHEMA}.*", **options)
        self.frame = query.load()
        if chosen:
            self.frame = query.schema(StructType([self.frame.schema[name] for name in chosen])).load()
        self._row_count = self.frame.count()

    def discard(self) -> int:
        """Read all rows; return their number."""
        self.frame.write.format("noop").mode("overwrite").save()
        return self._row_count

    def to_parquet(self) -> int:
        """Write all rows as Parquet; return their number."""
        with tempfile.TemporaryDirectory(prefix="tm-bench-parquet-") as folder:
            self.frame.write.parquet(f"{folder}/rows")
        return self._row_count


@dataclass(frozen=True, slots=True)
class _StageMark:
    """A pipeline's progress at the end of a Spark batch."""

    rows: int
    at_s: float
    cpu_s: float


class MarkedPipeline(Pipeline):
    """Records the end of each Spark batch."""

    def __init__(self, settings: Settings, outbox: OutboxReader) -> None:
        metrics, log = PipelineMetrics(outbox.identity.capture), get_log("bench")
        capture = StateCapture(outbox, Selection())
        self._landed = PipelineProgress(metrics, log, capture, settings.reader, settings.lake)
        self.marks: list[_StageMark] = []
        landing = DeltaLanding(
            LandingParts(settings, outbox, capture, self._landed, log, partial(outbox.register, READER))
        )
        super().__init__(settings, outbox, landing, self._landed, log, capture=capture)

    def _batch(self, offsets: OffsetLog, batch_id: int) -> None:
        super()._batch(offsets, batch_id)
        self.marks.append(_StageMark(self._landed.rows, time.perf_counter(), _cpu_s()))


def spark_trial(spark: SparkSession, state: Path, rows: int, written: Written) -> Cost:
    """Write an outbox into a new lake; the cost is that of all batches but the first, extrapolated to all rows.

    A query's first batch includes Spark's start, the start of this query's workers, and the creation of the tables. The
    cost includes Spark's work between batches.
    """
    with tempfile.TemporaryDirectory(prefix="tm-bench-lake-") as lake, OutboxReader.open(StateFolder(state)) as outbox:
        outbox.register(READER)
        batch_bytes = min(BATCH_BYTES, outbox.ledger().byte_count // BATCHES_MIN)
        settings = Settings(
            state,
            lake,
            f"{lake}/checkpoint",
            READER,
            batch_bytes,
            once=True,
            source=StatePlace(StateFolder(state), Selection()).source,
            lake_config=LakeConfig((LakeTableConfig("*.*", write=written),)),
        )
        pipeline = MarkedPipeline(settings, outbox)
        pipeline.run(spark, threading.Event())
    first, last = pipeline.marks[0], pipeline.marks[-1]
    if last.rows != rows:
        raise SystemExit(f"{last.rows} rows came into the lake, of {rows}")
    if last.rows == first.rows:
        raise SystemExit("all came in one batch: more rows are wanted")
    share = rows / (last.rows - first.rows)
    return Cost((last.at_s - first.at_s) * share, (last.cpu_s - first.cpu_s) * share)


class Copying:
    """Tables of a running node, copied by Tidemark into an outbox, and by the server without a destination."""

    def __init__(self, cluster: Cluster, database: str, tables: Sequence[str], folder: Path) -> None:
        self._cluster = cluster
        self._database = database
        self._tables = tables
        self._model = folder / "copy-model" / database
        self._config = config_for(cluster, database, copy=True)
        self._others = {child.pid for child in psutil.Process(cluster.pid).children()}
        initialise(self._config, StateFolder(self._model))

    def server(self) -> Cost:
        """COPY to /dev/null: the server formats the rows and discards them."""
        before_s, started = self._server_cpu_s(), time.perf_counter()
        self._cluster.sql(self._each("COPY {} TO '/dev/null'"), self._database)
        return Cost(time.perf_counter() - started, self._server_cpu_s() - before_s)

    def client(self) -> Cost:
        """Read the rows with psql and discard them."""
        where = ["-h", str(self._cluster.folder), "-p", str(self._cluster.port), "-U", SUPERUSER, self._database]
        command = [str(self._cluster.server.client("psql")), *where, "-qc", self._each("COPY {} TO STDOUT")]
        before_s, started = self._server_cpu_s() + _cpu_s(), time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        return Cost(time.perf_counter() - started, self._server_cpu_s() + _cpu_s() - before_s)

    def ours(self, rows: int) -> Cost:
        """Make the first copy, from its plan to the last row in the outbox."""
        with self._new_state() as store:
            view = store.view()
            assert view.beginning is not None
            epoch = store.begin_epoch(OWNER)
            copied = 0

            def deliver(group: ChangeGroup, progress: tuple[Oid, Oid, CopyProgress]) -> None:
                nonlocal copied
                copied += group.row_count
                _store_copied(store, epoch, group, progress)

            copy = FirstCopy(
                CopySettings.of(self._config),
                store,
                epoch,
                view.beginning,
                deliver,
                fills_outbox=True,
                databases={},
                at_start=dict,
                metrics=Metrics("bench"),
                log=get_log("bench"),
                stopping=threading.Event(),
            )
            before_s, started = self._server_cpu_s() + _cpu_s(), time.perf_counter()
            copy.run()
            cost = Cost(time.perf_counter() - started, self._server_cpu_s() + _cpu_s() - before_s)
        if copied != rows:
            raise SystemExit(f"{copied} rows were copied, of {rows}")
        return cost

    def _each(self, statement: str) -> str:
        return "; ".join(map(statement.format, self._tables))

    @contextmanager
    def _new_state(self) -> Iterator[StateStore]:
        with tempfile.TemporaryDirectory(prefix="tm-bench-copy-") as folder:
            state = Path(folder, "state")
            shutil.copytree(self._model, state)
            with StateStore.open(StateFolder(state)) as store:
                yield store

    def _server_cpu_s(self) -> float:
        """Return the CPU seconds of ended server processes, once all sessions have ended."""
        postmaster = psutil.Process(self._cluster.pid)
        deadline = time.monotonic() + GONE_S
        while {child.pid for child in postmaster.children()} - self._others and time.monotonic() < deadline:
            time.sleep(POLL_S)
        times = postmaster.cpu_times()
        return float(times.children_user + times.children_system)


def _store_copied(store: StateStore, epoch: Epoch, group: ChangeGroup, progress: tuple[Oid, Oid, CopyProgress]) -> None:
    encoded = replace(encode_group(group), moves_delivered=False)
    with store.transaction(epoch) as transaction:
        transaction.apply_confirmations()
        transaction.deliver(encoded)
        transaction.put_copy(*progress)
