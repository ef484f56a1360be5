"""The stages behind the decoder, each as a turn that can be repeated: outbox, Spark source, first copy."""

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from ctl.printing import Databases
from scripts.bench.decode_contestants import Cost
from scripts.bench.decode_workloads import Recording
from tests.support.captures import config_for
from tests.support.feeder import make_state
from tests.support.postgres import SUPERUSER, Cluster
from tidemark.decode.grouping import Grouper
from tidemark.decode.transactions import CommittedTransaction
from tidemark.io.archive import ArchiveFolder
from tidemark.io.logs import get_log
from tidemark.io.metrics import Metrics
from tidemark.io.outbox import OutboxReader
from tidemark.io.state import StateStore
from tidemark.io.state_folder import StateFolder
from tidemark.model.change import ChangeBatch, ChangeGroup
from tidemark.model.lsn import Oid
from tidemark.model.position import NO_SEQUENCE, Epoch
from tidemark.pipeline.metrics import PipelineMetrics
from tidemark.pipeline.progress import Progress
from tidemark.pipeline.runner import Pipeline, Settings
from tidemark.pipeline.source import BATCH_BYTES
from tidemark.runtime.decode_run import MEMORY_BYTES_DEFAULT
from tidemark.runtime.first_copy import FirstCopy
from tidemark.runtime.history_start import LsnRange, begin_from_history
from tidemark.runtime.initialise import initialise
from tidemark.runtime.offline import decode_archive
from tidemark.wire.items import ValueKind, decode_item
from tidemark.wire.outbox import encode_group
from tidemark.wire.state import CopyProgress, Owner

OUTBOX_BYTES = 4 << 30
OWNER = Owner("sidecar", "bench", "boot", 1, 1)
SLICE_ROWS = 65536
READER = "bench"
GONE_S, POLL_S = 10.0, 0.005


def measured(work: Callable[[], int], rows: int) -> Cost:
    """Return what it took to do something to so many rows, in this process and all that it started."""
    before_s, started = _cpu_s(), time.perf_counter()
    found = work()
    cost = Cost(time.perf_counter() - started, _cpu_s() - before_s)
    if found != rows:
        raise SystemExit(f"{found} rows came, of {rows}")
    return cost


def _cpu_s() -> float:
    """Return the CPU seconds of this process and what it started, but the servers of the measurement."""
    own = os.times()
    started = (child for child in psutil.Process().children() if child.name() != "postgres")
    return own.user + own.system + own.children_user + own.children_system + sum(map(_cpu_s_of, started))


def _cpu_s_of(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and its descendants; of those that ended, if they were waited for."""
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
    start = begin_from_history(view, folder.history, recording.begin, memory_bytes=MEMORY_BYTES_DEFAULT, spill=None)
    grouper = Grouper(Databases.of(view.identity.server_major, start.mirrors, start.databases, start.types).dialects)
    start.decoding.decoder.want_only(grouper.wants)
    segments = ArchiveFolder(recording.archive, of=view.identity.system_identifier)
    groups: list[ChangeGroup] = []
    for found in decode_archive(segments, start, LsnRange(recording.begin, recording.end), print):
        if isinstance(found, CommittedTransaction):
            groups += grouper.add_transaction(found)
        elif hasattr(found, "__len__"):
            groups += grouper.add_run(found)
    last = grouper.flush()
    return [*groups, *([last] if last is not None else [])]


def rows_of(groups: Sequence[ChangeGroup]) -> int:
    """Return how many rows there are in groups."""
    return sum(group.row_count for group in groups)


class Outbox:
    """An outbox that is written and read; made anew for each turn of writing."""

    def __init__(self, folder: Path, groups: Sequence[ChangeGroup]) -> None:
        self.state = folder / "outbox"
        self._groups = groups

    def write(self) -> int:
        """Write all groups, a durable transaction each; return how many rows they have."""
        with StateStore.open(StateFolder(self.state)) as store:
            epoch = store.take_epoch(OWNER)
            for group in self._groups:
                encoded = encode_group(group)
                with store.transaction(epoch) as moving:
                    moving.settle()
                    moving.deliver(encoded)
        return rows_of(self._groups)

    def anew(self) -> None:
        """Make an empty one."""
        shutil.rmtree(self.state, ignore_errors=True)
        make_state(self.state, bytes_max=OUTBOX_BYTES)

    def read(self) -> int:
        """Read all values and open them; return how many rows they have."""
        count = 0
        with OutboxReader.open(StateFolder(self.state)) as outbox:
            for value in outbox.read(NO_SEQUENCE, outbox.head()):
                if value.header.kind is ValueKind.BATCH:
                    item = decode_item(value.header.kind, value.payload)
                    assert isinstance(item, ChangeBatch), item
                    count += item.rows.num_rows
        return count


class LandingTimes(Progress):
    """Notes when each batch is in the lake."""

    landings: list[tuple[float, int]]

    def landed(self, feed, positions, head, seconds):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        """Note the time, and the rows so far."""
        super().landed(feed, positions, head, seconds)
        self.landings.append((time.perf_counter(), self.rows))


def spark_turn(spark: SparkSession, state: Path, rows: int) -> Cost:
    """Bring an outbox into a new lake; the cost is of what follows the first batch, told for all rows.

    A query's first batch has Spark's own start in it, of this query's workers, and the making of the tables.
    """
    with tempfile.TemporaryDirectory(prefix="tm-bench-lake-") as lake, OutboxReader.open(StateFolder(state)) as outbox:
        outbox.register(READER)
        settings = Settings(state, lake, f"{lake}/checkpoint", READER, BATCH_BYTES, shared_with_group=False, once=True)
        metrics, log = PipelineMetrics(outbox.identity.capture), get_log("bench")
        progress = LandingTimes(metrics, log, StateFolder(state), READER, lake)
        progress.landings = []
        before_s = _cpu_s()
        Pipeline(settings, outbox, metrics, progress, log).run(spark, threading.Event())
        cpu_s = _cpu_s() - before_s
    if progress.rows != rows:
        raise SystemExit(f"{progress.rows} rows came into the lake, of {rows}")
    (first_s, first_rows), (last_s, last_rows) = progress.landings[0], progress.landings[-1]
    if last_rows == first_rows:
        raise SystemExit("all came in one batch: more rows are wanted")
    return Cost((last_s - first_s) * rows / (last_rows - first_rows), cpu_s)


class Copying:
    """A table of a running node: copied by us into an outbox, and by the server to nowhere."""

    def __init__(self, cluster: Cluster, database: str, table: str, folder: Path) -> None:
        self._cluster = cluster
        self._database = database
        self._table = table
        self._model = folder / "copy-model"
        self._config = config_for(cluster, database, copy=True)
        self._others = {child.pid for child in psutil.Process(cluster.pid).children()}
        initialise(self._config, StateFolder(self._model))

    def server(self) -> Cost:
        """COPY to /dev/null: the server formats the rows and drops them."""
        before_s, started = self._server_cpu_s(), time.perf_counter()
        self._cluster.sql(f"COPY {self._table} TO '/dev/null'", self._database)
        return Cost(time.perf_counter() - started, self._server_cpu_s() - before_s)

    def client(self) -> Cost:
        """Let psql take the rows and drop them."""
        where = ["-h", str(self._cluster.folder), "-p", str(self._cluster.port), "-U", SUPERUSER, self._database]
        command = [str(self._cluster.server.client("psql")), *where, "-qc", f"COPY {self._table} TO STDOUT"]
        before_s, started = self._server_cpu_s() + _cpu_s(), time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        return Cost(time.perf_counter() - started, self._server_cpu_s() + _cpu_s() - before_s)

    def ours(self, rows: int) -> Cost:
        """Make the first copy, from its plan to the last row in the outbox."""
        with self._new_state() as store:
            view = store.view()
            assert view.beginning is not None
            epoch = store.take_epoch(OWNER)
            copied = 0

            def deliver(group: ChangeGroup, progress: tuple[Oid, Oid, CopyProgress]) -> None:
                nonlocal copied
                copied += group.row_count
                _store_copied(store, epoch, group, progress)

            copy = FirstCopy(
                self._config,
                store,
                epoch,
                view.beginning,
                deliver,
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

    @contextmanager
    def _new_state(self) -> Iterator[StateStore]:
        with tempfile.TemporaryDirectory(prefix="tm-bench-copy-") as folder:
            state = Path(folder, "state")
            shutil.copytree(self._model, state)
            with StateStore.open(StateFolder(state)) as store:
                yield store

    def _server_cpu_s(self) -> float:
        """Return the CPU seconds of the server's processes that have ended, once all sessions are among them."""
        postmaster = psutil.Process(self._cluster.pid)
        deadline = time.monotonic() + GONE_S
        while {child.pid for child in postmaster.children()} - self._others and time.monotonic() < deadline:
            time.sleep(POLL_S)
        times = postmaster.cpu_times()
        return float(times.children_user + times.children_system)


def _store_copied(store: StateStore, epoch: Epoch, group: ChangeGroup, progress: tuple[Oid, Oid, CopyProgress]) -> None:
    encoded = replace(encode_group(group), moves_delivered=False)
    with store.transaction(epoch) as moving:
        moving.settle()
        moving.deliver(encoded)
        moving.put_copy(*progress)
