"""The delay of changes while the archiver delivers (I31): from commit to outbox, with and without the grant.

usage: scripts/bench/archive_delay [--seconds 60]

Small transactions are committed at intervals; they never fill a segment. With EXECUTE on pg_switch_wal,
`archive.switch_s` bounds the delay; without it the server's archive_timeout does, which is set to the same number here.
"""

import argparse
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path

import pyarrow as pa

from tests.support.processes.captures import Sidecar
from tests.support.processes.failover import Pair, archiving_node, paired
from tests.support.servers.archiving import ArchivingServer
from tidemark.io.readers.outbox import OutboxReader
from tidemark.model.change import ChangeBatch
from tidemark.model.position import NO_SEQUENCE

BOUNDS_S = (2, 10)
PAUSE_S = 0.5  # maximum pause between two transactions
LOOK_S = 0.01
GRACE = 3  # number of bounds to wait for the last change


def write(pair: Pair, until_s: float) -> int:
    """Commit at random intervals; return the number of commits."""
    rng, count = random.Random(1), 0
    with pair.node.connect("postgres") as session:
        while time.monotonic() < until_s:
            count += 1
            session.execute("INSERT INTO account VALUES (%s, 'x')", (count,))
            time.sleep(rng.random() * PAUSE_S)
    return count


def delays(pair: Pair, seconds: float, bound_s: float) -> list[float]:
    """Return the delays of all changes that are committed within `seconds`."""
    found: list[float] = []
    written: list[int] = []
    until_s = time.monotonic() + seconds
    writer = threading.Thread(target=lambda: written.append(write(pair, until_s)))
    writer.start()
    with OutboxReader.open(pair.sidecar.folder) as reader:
        seen = NO_SEQUENCE
        while not written or (len(found) < written[0] and time.monotonic() < until_s + GRACE * bound_s):
            time.sleep(LOOK_S)
            head, now = reader.head(), time.time()
            for item in Sidecar.items(reader, seen, head):
                if isinstance(item, ChangeBatch):
                    times = pa.RecordBatch.column(item.rows, "_commit_time")
                    found += [now - when.timestamp() for when in times.to_pylist()]
            seen = head
    writer.join()
    assert len(found) == written[0], f"{len(found)} of {written[0]} changes came"
    return found


def measure(node: ArchivingServer, bound_s: int, seconds: float, *, granted: bool) -> str:
    """Run one case; return its output line."""
    node.node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
    options = {"TIDEMARK_ARCHIVE__SWITCH_S": str(bound_s)}
    if not granted:
        node.node.configure(archive_timeout=bound_s)
        options["TIDEMARK_MARKERS__DSN"] = f"{node.node.dsn('postgres')} user=plain"
    try:
        with tempfile.TemporaryDirectory() as root, paired(node, Path(root), options=options) as pair:
            pair.switch_off()
            pair.catch_up()
            found = sorted(delays(pair, seconds, bound_s))
    finally:
        node.node.configure(archive_timeout=0)
        node.node.sql("DROP TABLE account")
    how = f"granted, archive.switch_s = {bound_s}" if granted else f"not granted, archive_timeout = {bound_s}"
    p50, p99 = statistics.median(found), found[int(len(found) * 0.99)]
    return f"{how:36} {len(found):5} changes   p50 {p50:6.2f} s   p99 {p99:6.2f} s   max {found[-1]:6.2f} s"


def main() -> None:
    """Print one line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0, help="of load in each case")
    seconds = parser.parse_args().seconds
    with archiving_node() as node:
        node.node.sql("CREATE ROLE plain LOGIN")
        for bound_s in BOUNDS_S:
            for granted in (True, False):
                print(measure(node, bound_s, seconds, granted=granted), flush=True)


if __name__ == "__main__":
    main()
