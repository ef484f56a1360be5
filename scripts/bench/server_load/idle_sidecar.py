"""An idle sidecar after a restart: its anonymous memory, its CPU time and its wake-ups, with many captured tables.

Each table has rows that were copied and rows that were decoded before the restart, so that the state knows all of them.
Memory is `Anonymous` of smaps_rollup; the pages of the ring are not in it beyond the WAL received since the start,
which is reported beside it. Wake-ups are the voluntary context switches of all threads.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from scripts.bench.server_load.companions import DATABASE, cpu_s
from tests.support.processes.captures import Sidecar
from tests.support.servers.postgres import Cluster, new_cluster, sql
from tidemark.io.process.config import DeliverConfig
from tidemark.io.process.metrics import WAL_BYTES

SETTLES_S = 20.0  # after the start: the first positions, and allocations that are freed again
ROWS = 100
CREATE = """
    CREATE TABLE busy_{number} (id bigint PRIMARY KEY, account integer, amount numeric(12, 2), label text,
        code varchar(40), flag boolean, day date, at timestamptz, document jsonb, numbers integer[])"""
INSERT = """
    INSERT INTO busy_{number} SELECT {first} + n, n, n / 100.0, 'label ' || n, 'code', true, current_date, now(),
        '{{"a": 1}}', ARRAY[n] FROM generate_series(1, {rows}) n"""
CAPTURE = "main"
KB = 1 << 10
MB = 1 << 20


@dataclass(frozen=True, slots=True)
class IdleCost:
    """What an idle sidecar costs; megabytes, percent of a CPU, wake-ups a second."""

    tables: int
    anonymous_mb: float
    received_mb: float
    resident_mb: float
    cpu_percent: float
    wake_ups: float


def measure_idle(major: int, tables: int, seconds: float) -> IdleCost:
    """Measure a sidecar that delivers to the outbox, for `seconds` after it was restarted and has settled."""
    with _restarted(major, tables) as running:
        assert running.process is not None
        process = psutil.Process(running.process.pid)
        time.sleep(SETTLES_S)
        before_s, switches_before = cpu_s(process), _voluntary_switches(process.pid)
        time.sleep(seconds)
        taken_s, switches = cpu_s(process) - before_s, _voluntary_switches(process.pid) - switches_before
        return IdleCost(
            tables,
            anonymous_bytes(process.pid) / MB,
            running.metric(f'{WAL_BYTES}{{capture="{CAPTURE}"}}') / MB,
            process.memory_info().rss / MB,
            100 * taken_s / seconds,
            switches / seconds,
        )


def show_idle(cost: IdleCost) -> None:
    """Print one measurement."""
    for name, value in asdict(cost).items():
        sys.stdout.write(f"{name:14}{value:10.2f}\n")


def anonymous_bytes(pid: int) -> int:
    """Return the anonymous memory of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) * KB


def _voluntary_switches(pid: int) -> int:
    found = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        found += next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("voluntary"))
    return found


@contextmanager
def _restarted(major: int, tables: int) -> Iterator[Sidecar]:
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as scratch, new_cluster(major) as cluster:
        _insert(cluster, tables, 0)
        defaults = {"TIDEMARK_DELIVER__IDLE_POINTER_S": str(DeliverConfig().idle_pointer_s)}
        running = Sidecar(cluster, DATABASE, Path(scratch), copy=True, **defaults)
        running.init()
        try:
            running.start()
            _insert(cluster, tables, ROWS)
            running.catch_up()
            running.stop()
            running.start()
            yield running
        finally:
            running.close()


def _insert(cluster: Cluster, tables: int, first: int) -> None:
    """Insert into each table; create them with their first rows."""
    with cluster.connect(DATABASE) as session:
        for number in range(tables):
            if not first:
                sql(session, CREATE.format(number=number))
            sql(session, INSERT.format(number=number, first=first, rows=ROWS))
