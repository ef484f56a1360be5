"""A merge of random updates into a replica, by the driver and by executors: wall and CPU seconds of all processes.

Each trial reads the updates from an outbox server with TLS, merges them into a fresh copy of a replica in the order of
its key, and commits. The executors are two processes of this host with one core each, so driver and executors have the
same cores. The contestants alternate; each has merged before it is measured. The server's CPU is included.
`reading` is the part of the driver's trial before its merge.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from scripts.bench.delivery.chain_bench import serving
from scripts.bench.delivery.chain_stages import OUTBOX_BYTES, measured
from scripts.bench.measuring.commands import Cost
from scripts.bench.measuring.machine import machine
from scripts.bench.measuring.rounds import run_trials, spread
from tests.support.lakes.scripted_table import DATABASE, ScriptedTable, column
from tests.support.workloads.feeder import feed, group_of, make_state
from tidemark.decode.types.registry import UTF8
from tidemark.io.host.log_output import configure_logs, get_log
from tidemark.io.process.lake_config import LakeConfig
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeBatch
from tidemark.model.position import NO_SEQUENCE
from tidemark.pipeline.delta_log.applied import NOTHING
from tidemark.pipeline.driver.executor_writers import ExecutorWriters
from tidemark.pipeline.driver.session import make_session
from tidemark.pipeline.lake.layout import constants_of, replica_schema, shape_of
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.landing.metrics import PipelineMetrics
from tidemark.pipeline.landing.portions import feeds
from tidemark.pipeline.merge.merge_tasks import MergeTask
from tidemark.pipeline.merge.merging import MergedFiles, append_rows
from tidemark.pipeline.sinks.executors.executor_files import ReplicaFiles
from tidemark.pipeline.sinks.executors.packed_runs import PackedRuns
from tidemark.pipeline.sinks.replica.replica import Replica
from tidemark.pipeline.sinks.steps import Delivered, PackedRun
from tidemark.pipeline.source.opened_outbox import open_outbox
from tidemark.pipeline.source.options import SourceOptions
from tidemark.wire.values import ValueKind

APP = "tidemark:bench:replica"
KEY = ("id",)
COPY_ROWS = 65_536  # of a group of a first copy
VALUE_ROWS = 20_000  # of a group of updates
WARM_ROUNDS = 3  # each executor starts its Python processes in one of the first
MASTER = "local-cluster[2,1,1024]"  # two executors, one core each, 1 GiB
COLUMNS = (
    column(1, "id", "int8"),
    column(2, "customer", "int4"),
    column(3, "amount", "int4"),
    column(4, "note", "text"),
    column(5, "updated", "int8"),
)


class TaskCounter(ExecutorWriters):
    """Counts the tasks of the last merge."""

    tasks = 0

    def merge(self, target: ReplicaFiles, run: PackedRun, tasks: Sequence[MergeTask]) -> Sequence[MergedFiles] | None:
        """Merge, and keep the number of tasks."""
        found = super().merge(target, run, tasks)
        self.tasks = len(tasks) if found is not None else 0
        return found


class Merges:
    """A replica of `total` rows, and an outbox with `rows` random updates of it."""

    def __init__(self, folder: Path, total: int, rows: int) -> None:
        self.rows, self.state = rows, folder / "state"
        self._whole, self.replica = folder / "whole", folder / "replica"
        self._table = ScriptedTable()
        self._table.relation = replace(self._table.relation, columns=COLUMNS)
        self._copy(total)
        numbers = random.Random(total)
        for count, key in enumerate(sorted(numbers.sample(range(total), rows), key=lambda _: numbers.random()), 1):
            few = {2: numbers.randrange(1 << 20), 3: numbers.randrange(1 << 20)}
            self._table.rows[key,] = {1: key, **few, 4: "", 5: 0}
            self._table.update((key,), {4: f"{numbers.randrange(1 << 40):010x}", 5: numbers.randrange(1 << 50)})
            if count % VALUE_ROWS == 0:
                self._table.cut()
        self._table.cut()
        make_state(self.state, bytes_max=OUTBOX_BYTES)
        feed(self.state, (group_of([item]) for item in self._table.items))
        with OutboxReader.open(StateFolder(self.state)) as outbox:
            headers = outbox.headers(NO_SEQUENCE, outbox.head())
        self.changed_bytes = sum(header.payload_length for header in headers if header.kind is ValueKind.BATCH)
        self.file_bytes = sum(path.stat().st_size for path in self._whole.glob("*.parquet"))

    def _copy(self, total: int) -> None:
        """Create the replica as a first copy does, in the order of its key."""
        schema = replica_schema(self._table.relation, shape_of(self._table.relation))
        table = LakeTable(str(self._whole), APP)
        table.create(schema, NOTHING)
        numbers = np.random.default_rng(total)
        for begin in range(0, total, COPY_ROWS):
            ids = np.arange(begin, min(total, begin + COPY_ROWS))
            few = [numbers.integers(0, 1 << 20, len(ids)) for _ in range(2)]
            notes = [f"{note:010x}" for note in numbers.integers(0, 1 << 40, len(ids))]
            columns = [ids, *few, notes, ids * 1_000_000]
            arrays = [pa.array(one, field.type) for one, field in zip(columns, schema, strict=True)]
            append_rows(table, pa.table(arrays, schema=schema), KEY, table.applied)

    def reset(self) -> None:
        """Give the next trial a fresh copy of the replica."""
        shutil.rmtree(self.replica, ignore_errors=True)
        shutil.copytree(self._whole, self.replica)

    def merge(self, source: SourceOptions, writers: ExecutorWriters | None) -> int:
        """Merge all updates; return their number."""
        packed = None if writers is None else PackedRuns(writers, (DATABASE, self._table.oid), keeps_deleted=False)
        replica = Replica(str(self.replica), APP, shape_of, constants_of, UTF8, packed=packed)
        outbox, count = open_outbox(source), 0
        taken = None if writers is None else writers.taken()
        for portion in feeds(outbox, outbox.outbox_id, NO_SEQUENCE, outbox.head(), writers=taken):
            items = [(number, item) for number, item in portion.lake_batch.items if isinstance(item, ChangeBatch)]
            replica.apply([Delivered(number, item) for number, item in items])
            count += portion.row_count
        return count

    def content(self) -> pa.Table:
        """Return the rows of the replica."""
        return DeltaTable(str(self.replica)).to_pyarrow_table().sort_by("id")


def read(source: SourceOptions) -> int:
    """Read all updates, as the driver does; return their number."""
    outbox = open_outbox(source)
    return sum(portion.row_count for portion in feeds(outbox, outbox.outbox_id, NO_SEQUENCE, outbox.head()))


def measure(spark: SparkSession, folder: Path, total: int, rows: int, rounds: int) -> dict[str, object]:
    """Return the figures of one size of the replica."""
    merges = Merges(folder, total, rows)
    with serving(merges.state, wanted=True) as server:
        source, metrics = SourceOptions.parse(server), PipelineMetrics("bench")
        writers = TaskCounter(source, str(folder), LakeConfig(executor_bytes_min=1), get_log("bench"), metrics)
        writers.attach(spark, Event())

        def trial(given: ExecutorWriters | None) -> Cost:
            merges.reset()
            return measured(lambda: merges.merge(source, given), rows)

        trial(None)
        content = merges.content()
        for _ in range(WARM_ROUNDS):
            trial(writers)
        if not writers.tasks or not merges.content().equals(content):
            raise SystemExit("the executors did not merge, or not the same")
        trials = {
            "reading": lambda: measured(lambda: read(source), rows),
            "driver": lambda: trial(None),
            "executors": lambda: trial(writers),
        }
        costs = run_trials(trials, rounds)
    return {
        "replica_rows": total,
        "changed_rows": rows,
        "changed_bytes": merges.changed_bytes,
        "file_bytes": merges.file_bytes,
        "tasks": writers.tasks,
        **{
            name: {what: f"{spread([getattr(cost, what) for cost in found]):.2f}" for what in ("wall_s", "cpu_s")}
            for name, found in costs.items()
        },
    }


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replica", type=int, nargs="+", default=[1_000_000], metavar="ROWS", help="its sizes")
    parser.add_argument("--rows", type=int, default=100_000, help="changed rows (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median counts (default: %(default)s)")
    given = parser.parse_args()
    configure_logs("json", "warning")
    about = machine()
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as folder:
        (Path(folder) / "spark").mkdir()
        spark = make_session(MASTER, StateFolder(Path(folder) / "spark"), driver_memory="700m", local_checkpoint=True)
        try:
            found = [
                measure(spark, Path(folder) / str(total), total, given.rows, given.rounds) for total in given.replica
            ]
        finally:
            spark.stop()
    json.dump({**about, "merges": found}, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
