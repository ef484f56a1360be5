"""How soon a commit is visible in the lake, with server, sidecar and `cdcctl spark run` on one machine.

    start        from `cdcctl spark run` to the commit of the first batch
    log, both    from the server's time of a commit to its visibility in the log, and in log and replica
    a batch      CPU milliseconds of each process, and elapsed milliseconds by stage: of the driver, and of Spark

A commit's visibility is read from the lake afterwards (`lake_visibility`); nothing but the load runs beside the
pipeline. Spark's stages come from its log. Each load begins with some seconds that are not counted.

The limits are those of two quiet cores; with other load the CPU and the number of batches remain comparable.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from scripts.bench.delivery.lake_visibility import visible_changes
from scripts.bench.delivery.pipeline_load import (
    DATABASE,
    DEADLINE_S,
    FAMILIES,
    KEYS,
    CommitLoad,
    RunningPipeline,
    create_tables,
    difference,
    insert_a_row,
    loaded,
    tree_cpu_s,
)
from scripts.bench.measuring.machine import machine
from tests.support.processes.captures import Sidecar
from tests.support.processes.waiting import let_pass, wait_until
from tests.support.servers.postgres import Cluster, new_cluster
from tidemark.io.host.log_output import configure_logs

MAJOR = 15
SECONDS, QUICK_SECONDS = 30, 8
WARM_S, QUICK_WARM_S = 15, 5
LOADS = (
    CommitLoad("200/s", 200, "few", 4),
    CommitLoad("2000/s", 2000, "few", 4),
    CommitLoad("20 tables", 100, "some", 20),
    CommitLoad("200 tables", 100, "many", 200),
)
START_S_MAX = 10.0
LIMITS_S = {"200/s": (0.3, 0.7), "2000/s": (0.45, 1.0), "20 tables": (0.7, 1.4), "200 tables": (2.0, 4.0)}
STAGE = "tidemark_pipeline_stage_seconds_total:"
BATCHES = "tidemark_pipeline_batches_total"
FIRST = "few1"


class MeasuredCapture:
    """A server with sidecar and pipeline."""

    def __init__(self, cluster: Cluster, sidecar: Sidecar, pipeline: RunningPipeline, folder: Path) -> None:
        self._cluster = cluster
        self._sidecar = sidecar
        self._pipeline = pipeline
        self._folder = folder

    def prepare(self) -> None:
        """Create the archive of Spark's classes that the start then maps."""
        self._pipeline.prepare()

    def start(self) -> tuple[float, dict[str, float]]:
        """Start the pipeline with changes waiting; return the seconds until one is visible, and the CPU seconds."""
        log = self._pipeline.table(FIRST) / "log/_delta_log"
        self._pipeline.start()
        # NB: the version after the one that creates the table contains the row.
        first = log / f"{1:020d}.json"
        wait_until(first.exists, "the first batch", within_s=DEADLINE_S, reported=self._pipeline.log)
        used = _by_family(self._pipeline.cpu_s())
        self._pipeline.wait_until_drained()  # all tables are there
        return round(first.stat().st_ctime - self._pipeline.started_s, 2), used

    def measure(self, load: CommitLoad, warm_s: int, seconds: int) -> dict[str, object]:
        """Run a load; return its latencies, and what a batch costs."""
        with loaded(self._cluster, load, warm_s + seconds + 1, self._folder) as process:
            let_pass(warm_s, "the pipeline reaches its pace")
            begin_s, cpu, counters, log_bytes = self._sample()
            let_pass(seconds, "the measured interval")
            end_s, cpu_end, counters_end, log_bytes_end = self._sample()
            output, _ = process.communicate(timeout=DEADLINE_S)
            if process.returncode:
                raise SystemExit(f"pgbench failed: {output}")
        self._pipeline.wait_until_drained()
        changes = visible_changes([self._pipeline.table(name) for name in load.names]).within(begin_s, end_s)
        counted = difference(counters, counters_end)
        batches = max(1.0, counted[BATCHES])
        used = _by_family(difference(cpu, cpu_end))
        stages = {name.removeprefix(STAGE): s for name, s in counted.items() if name.startswith(STAGE)}
        return {
            "commits": len(changes.committed_s),
            "log_s": _percentiles(changes.log_s),
            "both_s": _percentiles(changes.both_s),
            "limit_s": LIMITS_S.get(load.name),
            "batches": int(counted[BATCHES]),
            "batch_ms": round((end_s - begin_s) * 1000 / batches),
            "cpu_ms_of_a_batch": {name: round(s * 1000 / batches, 1) for name, s in used.items()},
            "driver_ms_of_a_batch": {name: round(s * 1000 / batches, 1) for name, s in stages.items()},
            "spark_ms_of_a_batch": self._pipeline.spark_stages_ms(log_bytes, log_bytes_end),
        }

    def _sample(self) -> tuple[float, dict[tuple[str, int], float], dict[str, float], int]:
        assert self._sidecar.process is not None
        cpu = {
            ("server", 0): tree_cpu_s(self._cluster.pid),
            ("sidecar", 0): tree_cpu_s(self._sidecar.process.pid),
            **self._pipeline.cpu_s(),
        }
        return time.time(), cpu, self._pipeline.counters(), self._pipeline.log_bytes()


def _by_family(cpu_s: Mapping[tuple[str, int], float]) -> dict[str, float]:
    """Return the CPU seconds of each family of processes."""
    used: dict[str, float] = {}
    for (family, _), seconds in cpu_s.items():
        used[family] = used.get(family, 0.0) + seconds
    return {name: round(used[name], 2) for name in FAMILIES if name in used}


def _percentiles(seconds: Sequence[float] | np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float] | None:
    """Return p50 and p99."""
    if not len(seconds):
        return None
    return [round(float(value), 3) for value in np.percentile(seconds, [50, 99])]


@contextmanager
def measured_capture(loads: Sequence[CommitLoad], folder: Path) -> Iterator[MeasuredCapture]:
    """Run a server and a sidecar, and prepare a pipeline."""
    with new_cluster(MAJOR, {"autovacuum": "off"}) as cluster:
        cluster.sql(f"CREATE DATABASE {DATABASE}")
        create_tables(cluster, loads)
        sidecar = Sidecar(cluster, DATABASE, folder)
        sidecar.init()
        pipeline = RunningPipeline(sidecar, folder)
        try:
            sidecar.start()
            insert_a_row(cluster, loads)
            sidecar.catch_up()
            yield MeasuredCapture(cluster, sidecar, pipeline, folder)
        finally:
            pipeline.stop()
            sidecar.close()


def measure(
    loads: Sequence[CommitLoad], warm_s: int, seconds: int, folder: Path, *, is_prepared: bool
) -> dict[str, object]:
    """Return the seconds of the start, and the figures of each load."""
    with measured_capture(loads, folder) as capture:
        if is_prepared:
            capture.prepare()
        start_s, start_cpu_s = capture.start()
        found: dict[str, object] = {"start_s": start_s, "start_limit_s": START_S_MAX, "start_cpu_s": start_cpu_s}
        for load in loads:
            found[load.name] = capture.measure(load, warm_s, seconds)
    return found


def show(found: dict[str, object]) -> None:
    """Print the figures as text."""
    for name, value in found.items():
        if not isinstance(value, dict):
            print(f"{name}: {value}")
            continue
        print(f"{name}:")
        for what, figures in value.items():
            print(f"  {what:22}{figures}")


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of each load (default: %(default)s)")
    parser.add_argument("--tables", type=int, help="add a load of 100 commits/s over this many tables")
    parser.add_argument("--keys", type=int, default=KEYS, help="of each table (default: %(default)s)")
    parser.add_argument("--only", action="append", choices=[load.name for load in LOADS], help="default: each")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SECONDS} s of each load")
    parser.add_argument("--prepared", action="store_true", help="run `cdcctl spark prepare` before the start")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    given = parser.parse_args()
    configure_logs("json", "warning")
    about = machine()
    loads = [load for load in LOADS if not given.only or load.name in given.only]
    if given.tables:
        loads.append(CommitLoad(f"{given.tables} tables", 100, "more", given.tables))
    loads = [replace(load, keys=given.keys) for load in loads]
    warm_s, seconds = (QUICK_WARM_S, QUICK_SECONDS) if given.quick else (WARM_S, given.seconds)
    if FIRST not in loads[0].names:
        loads.insert(0, replace(LOADS[0], keys=given.keys))
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as folder:
        found = {**about, **measure(loads, warm_s, seconds, Path(folder), is_prepared=given.prepared)}
    if given.json:
        json.dump(found, sys.stdout, indent=2)
        print()
    else:
        show(found)


if __name__ == "__main__":
    main()
