"""One transaction of any size through a sidecar: its peak memory and its largest spill on disk.

python -m tests.support.workloads.big_transaction [--megabytes 20480] [--memory-megabytes 256]
    (scripts/big_transaction)

Its consumer discards rows, so that decoding alone is measured. The memory of a process is the peak of its resident set
(VmHWM), which `WatchedSidecar.begin` resets. The node keeps the WAL of the transaction, and the spill is about as
large: both disks need space for it.
"""

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import psycopg
from psycopg.rows import TupleRow

from tests.support.processes.captures import Sidecar
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster, new_cluster
from tests.support.servers.servers import MAJORS
from tidemark.io.process.metrics import ROWS, SPILLED
from tidemark.model.lsn import parse_lsn

MB = 1 << 20
DATABASE = "postgres"
QUEUE_BYTES = 4 * MB  # limits beside decode.memory_bytes: so small that a small transaction also reaches them
GROUP_BYTES = 1 * MB
ROW_BYTES = 400
ROWS_A_STATEMENT = 20_000
DELIVERED_S = 3600.0
POLL_S = 0.05
_LABELS = '{capture="main"}'


class Passed(NamedTuple):
    """A delivered transaction."""

    rows: int
    wal_bytes: int
    spilled_bytes: int  # as the metric states
    spill_bytes_max: int  # on disk at one time
    peak_bytes: int  # of the process's resident set
    written_s: float
    delivered_s: float  # after the commit

    def __str__(self) -> str:
        return (
            f"{self.wal_bytes / MB:,.0f} MB of WAL, {self.rows:,} rows: peak memory {self.peak_bytes / MB:,.0f} MB, "
            f"spilled {self.spilled_bytes / MB:,.0f} MB ({self.spill_bytes_max / MB:,.0f} MB at one time), "
            f"written in {self.written_s:,.1f} s, delivered {self.delivered_s:,.1f} s after its commit"
        )


class WatchedSidecar:
    """A sidecar over a node, its memory and its spill folder."""

    def __init__(self, node: Cluster, root: Path, memory_bytes: int) -> None:
        node.sql("CREATE TABLE big (id bigint, filler text)", DATABASE)
        self.node = node
        self.sidecar = Sidecar(
            node,
            DATABASE,
            root,
            TIDEMARK_DELIVER__CONSUMER="null",
            TIDEMARK_DECODE__MEMORY_BYTES=str(memory_bytes),
            TIDEMARK_DECODE__QUEUE_BYTES=str(QUEUE_BYTES),
            TIDEMARK_DELIVER__GROUP_BYTES_MAX=str(GROUP_BYTES),
            TIDEMARK_RING__BYTES_MAX=str(16 * MB),
        )
        self.sidecar.init()
        self.sidecar.start()
        self.rows = 0  # all written so far

    @property
    def spill(self) -> Path:
        """The folder of the spill."""
        return self.sidecar.folder.spill

    def metric(self, name: str) -> float:
        """Return a metric of the process."""
        return self.sidecar.metric(f"{name}{_LABELS}")

    def begin(self) -> None:
        """Reset the peak of memory."""
        assert self.sidecar.process is not None
        Path(f"/proc/{self.sidecar.process.pid}/clear_refs").write_text("5")

    def peak_bytes(self) -> int:
        """Return the peak of the resident set since then."""
        assert self.sidecar.process is not None
        status = Path(f"/proc/{self.sidecar.process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024

    def write(self, session: psycopg.Connection[TupleRow], wal_bytes: int) -> int:
        """Write rows until the open transaction has this amount of WAL; return their number."""
        begin, rows = self._insert_lsn(session), 0
        while self._insert_lsn(session) - begin < wal_bytes:
            session.execute(
                "INSERT INTO big SELECT n, repeat('x', %s) FROM generate_series(1, %s) n", (ROW_BYTES, ROWS_A_STATEMENT)
            )
            rows += ROWS_A_STATEMENT
        self.rows += rows
        return rows

    @staticmethod
    def _insert_lsn(session: psycopg.Connection[TupleRow]) -> int:
        row = session.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        assert row is not None
        return parse_lsn(str(row[0]))

    def wait_for_rows(self, count: int) -> None:
        """Wait until this process has delivered this number of rows."""

        def is_delivered() -> bool:
            assert self.sidecar.running, self.reported()
            return self.metric(ROWS) >= count

        wait_until(is_delivered, f"{count} rows", within_s=DELIVERED_S, reported=self.reported)

    def reported(self) -> str:
        """Return the end of the log."""
        return self.sidecar.log_path.read_text()[-4000:]

    def spilled_on_disk(self) -> int:
        """Return the bytes in the spill folder."""
        found = 0
        for path in self.spill.glob("*.spill"):
            try:
                found += path.stat().st_size
            except FileNotFoundError:
                continue
        return found

    def passes(self, wal_bytes: int) -> Passed:
        """Write a transaction of that size, and wait until it is delivered."""
        delivered, spilled = self.metric(ROWS), self.metric(SPILLED)
        over = threading.Event()
        most_on_disk = [0]

        def look() -> None:
            while not over.wait(POLL_S):
                most_on_disk[0] = max(most_on_disk[0], self.spilled_on_disk())

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        self.begin()
        begun_s = time.monotonic()
        with self.node.connect(DATABASE, autocommit=False) as session:
            start = self._insert_lsn(session)
            rows = self.write(session, wal_bytes)
            written = self._insert_lsn(session) - start
            session.commit()
        committed_s = time.monotonic()
        self.wait_for_rows(int(delivered) + rows)
        done_s = time.monotonic()
        over.set()
        watcher.join()
        return Passed(
            rows,
            written,
            int(self.metric(SPILLED) - spilled),
            most_on_disk[0],
            self.peak_bytes(),
            committed_s - begun_s,
            done_s - committed_s,
        )


def main() -> int:
    """Measure one transaction, and a small one before it for comparison."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=20 << 10)
    parser.add_argument("--memory-megabytes", type=int, default=256)
    parser.add_argument("--major", type=int, default=15, choices=MAJORS)
    options = parser.parse_args()
    memory_bytes = options.memory_megabytes * MB
    settings: dict[str, str | int] = {"wal_keep_size": f"{options.megabytes * 2 + 1024}MB", "max_wal_size": "4GB"}
    with tempfile.TemporaryDirectory(prefix="tm-") as root, new_cluster(options.major, settings) as node:
        watched = WatchedSidecar(node, Path(root), memory_bytes)
        try:
            for megabytes in (2 * options.memory_megabytes, options.megabytes):
                passed = watched.passes(megabytes * MB)
                sys.stdout.write(f"decode.memory_bytes {options.memory_megabytes} MB; {passed}\n")
                sys.stdout.flush()
        finally:
            watched.sidecar.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
