"""One COPY of many rows into a captured table, until log and replica in the lake contain all of them.

    CPU s        of Tidemark's processes: sidecar, the pipeline's driver, its JVM and Spark's Python helpers
    server       CPU seconds of PostgreSQL, which are not counted in the rate
    peak MB      the largest anonymous memory of each family of processes

Server, sidecar and pipeline run beside each other on this machine. The elapsed time begins with the COPY; the time
after its commit is stated as well. Each round copies into a new table, which the pipeline already knows.
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from scripts.bench.delivery.pipeline_load import DATABASE, FAMILIES, RunningPipeline, difference, tree_cpu_s
from scripts.bench.measuring.machine import machine
from scripts.bench.measuring.workloads import CREATE_NARROW, INSERT_NARROW, node
from tests.support.processes.captures import Sidecar
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster, sql
from tidemark.io.host.log_output import configure_logs

ROWS, QUICK_ROWS = 10_000_000, 1_000_000
ROUNDS = 3
SAMPLE_S = 0.2
COPIED_S = 600.0  # the bound of one round
RSS = re.compile(r"^RssAnon:\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class BulkLoad:
    """The cost of one COPY; CPU seconds and megabytes by family of processes."""

    rows: int
    elapsed_s: float
    after_commit_s: float
    cpu_s: dict[str, float]
    peak_mb: dict[str, int]

    @property
    def own_cpu_s(self) -> float:
        """CPU seconds of all processes but the server's."""
        return sum(seconds for family, seconds in self.cpu_s.items() if family != "server")

    @property
    def rows_per_cpu_s(self) -> float:
        """Rows by CPU second of Tidemark's processes."""
        return self.rows / self.own_cpu_s


class MeasuredProcesses:
    """The server, the sidecar and the pipeline's processes."""

    def __init__(self, cluster: Cluster, sidecar: Sidecar, pipeline: RunningPipeline) -> None:
        self._cluster = cluster
        self._sidecar = sidecar
        self._pipeline = pipeline

    def cpu_s(self) -> dict[tuple[str, int], float]:
        """Return the CPU seconds, by family and process id."""
        return {
            ("server", 0): tree_cpu_s(self._cluster.pid),
            ("sidecar", self._sidecar_pid): tree_cpu_s(self._sidecar_pid),
            **self._pipeline.cpu_s(),
        }

    @property
    def _sidecar_pid(self) -> int:
        assert self._sidecar.process is not None
        return self._sidecar.process.pid

    def anonymous_mb(self) -> dict[str, int]:
        """Return the anonymous memory of each family but the server, in MB."""
        found: dict[str, int] = {}
        for family, pid in self.cpu_s():
            if family != "server":
                found[family] = found.get(family, 0) + _anonymous_kb(pid) // 1000
        return found

    @contextmanager
    def sampled_memory(self) -> Iterator[dict[str, int]]:
        """Sample the memory meanwhile; yield the largest value of each family, complete at the end."""
        peak: dict[str, int] = {}
        ended = threading.Event()

        def sample() -> None:
            while not ended.wait(SAMPLE_S):
                for family, size in self.anonymous_mb().items():
                    peak[family] = max(size, peak.get(family, 0))

        thread = threading.Thread(target=sample, daemon=True)
        thread.start()
        try:
            yield peak
        finally:
            ended.set()
            thread.join()


def _anonymous_kb(pid: int) -> int:
    try:
        found = RSS.search(Path(f"/proc/{pid}/status").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(found[1]) if found is not None else 0


class StoredTable:
    """A log or replica, whose rows are counted by the statistics of its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._commits = 0
        self._rows = 0

    def row_count(self) -> int:
        """Return the number of rows; the table is opened only after a commit, because it runs beside the pipeline."""
        commits = len(list((self.folder / "_delta_log").glob("*.json")))
        if commits != self._commits:
            files = pa.table(DeltaTable(str(self.folder)).get_add_actions(flatten=True))
            self._commits, self._rows = commits, sum(files.column("num_records").to_pylist())
        return self._rows


class BulkLoads:
    """Repeated COPYs of the same rows beside a running capture."""

    def __init__(self, cluster: Cluster, processes: MeasuredProcesses, pipeline: RunningPipeline, rows: int) -> None:
        self._cluster = cluster
        self._processes = processes
        self._pipeline = pipeline
        self._rows = rows
        self._file = cluster.data.parent / "copied.rows"

    def write_file(self) -> None:
        """Create the file that is copied; its rows are in no captured table."""
        with self._cluster.connect("postgres") as session:
            sql(session, CREATE_NARROW)
            sql(session, INSERT_NARROW.format(rows=self._rows))
            sql(session, f"COPY narrow TO '{self._file}'")
            sql(session, "DROP TABLE narrow")

    def measure(self, name: str, parts: Sequence[str]) -> BulkLoad:
        """COPY into a table, and wait until it is complete in the lake."""
        stored = [StoredTable(self._pipeline.table(name) / part) for part in parts]
        wanted = [table.row_count() + self._rows for table in stored]
        before = self._processes.cpu_s()
        with self._processes.sampled_memory() as peak:
            started_s = time.monotonic()
            self._cluster.sql(f"COPY {name} FROM '{self._file}'", DATABASE)
            committed_s = time.monotonic()
            wait_until(
                lambda: all(table.row_count() >= rows for table, rows in zip(stored, wanted, strict=True)),
                f"{self._rows} rows in the lake",
                within_s=COPIED_S,
                reported=self._pipeline.log,
            )
            ended_s = time.monotonic()
        used = difference(before, self._processes.cpu_s())
        for table, rows in zip(stored, wanted, strict=True):
            if table.row_count() != rows:
                raise SystemExit(f"{table.row_count()} rows are in {table.folder}, of {rows}")
        cpu_s = {
            family: round(sum(seconds for (of, _), seconds in used.items() if of == family), 2) for family in FAMILIES
        }
        return BulkLoad(self._rows, round(ended_s - started_s, 2), round(ended_s - committed_s, 2), cpu_s, peak)


def measure(rows: int, rounds: int, written: str, folder: Path) -> list[BulkLoad]:
    """Return the cost of each round."""
    names = [f"copied{number}" for number in range(rounds + 1)]
    config = folder / "lake.toml"
    config.write_text(f'[[lake.tables]]\npattern = "*.*"\nwrite = "{written}"\n')
    with node() as cluster:
        cluster.sql(f"CREATE DATABASE {DATABASE}")
        for name in names:
            cluster.sql(CREATE_NARROW.replace("narrow", name), DATABASE)
        sidecar = Sidecar(cluster, DATABASE, folder)
        sidecar.init()
        pipeline = RunningPipeline(sidecar, folder)
        loads = BulkLoads(cluster, MeasuredProcesses(cluster, sidecar, pipeline), pipeline, rows)
        loads.write_file()
        try:
            sidecar.start()
            pipeline.start("--config", str(config))
            for name in names:  # the pipeline creates its tables, and Spark's first batches are slow
                cluster.sql(f"INSERT INTO {name} VALUES (0); DELETE FROM {name}", DATABASE)
            pipeline.wait_until_drained()
            parts = ("log", "replica") if written == "both" else ("log",)
            return [loads.measure(name, parts) for name in names[1:]]
        finally:
            pipeline.stop()
            sidecar.close()


def show(about: Mapping[str, object], found: Sequence[BulkLoad]) -> None:
    """Print the rounds, and the medians."""
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    for load in found:
        used = ", ".join(f"{family} {seconds}" for family, seconds in load.cpu_s.items())
        peak = ", ".join(f"{family} {size}" for family, size in load.peak_mb.items())
        print(
            f"{load.rows:,} rows: {load.elapsed_s} s, {load.after_commit_s} s after the commit; "
            f"{load.rows_per_cpu_s:,.0f} rows by CPU second\n  CPU s: {used}\n  peak MB: {peak}"
        )
    print(f"median: {statistics.median(load.rows_per_cpu_s for load in found):,.0f} rows by CPU second")


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS, help="of each COPY (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--written", choices=("log", "both"), default="both", help="of the table in the lake")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} rows, one round")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    given = parser.parse_args()
    configure_logs("json", "warning")
    rows, rounds = (QUICK_ROWS, 1) if given.quick else (given.rows, given.rounds)
    about = machine()
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as folder:
        found = measure(rows, rounds, given.written, Path(folder))
    if given.json:
        rates = [{**asdict(load), "rows_per_cpu_s": round(load.rows_per_cpu_s)} for load in found]
        json.dump({**about, "written": given.written, "loads": rates}, sys.stdout, indent=2)
        print()
    else:
        show(about, found)


if __name__ == "__main__":
    main()
