#!/usr/bin/env python3
"""Our scan of WAL, CRC included, beside `pg_waldump --quiet` on the same segments, turn by turn in one run.

Prints medians and their ratio; only the ratio means anything on a shared machine. Without a folder it makes WAL of its
own with pgbench on a throw-away PostgreSQL 15. Ours is timed inside the process, from the first open to the last
record; pg_waldump as a whole process, whose start takes a few milliseconds.

    scripts/bench/scan.py [--rounds 7] [--parse] [--waldump PATH] [FOLDER]
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.postgres import new_cluster
from tests.support.servers import server
from tidemark.model.lsn import Lsn, format_lsn
from tidemark.wal.kernel import COMPILED
from tidemark.wal.page import Framer, Invalid, RecordBlock
from tidemark.wal.rmgr import RM_HEAP, RM_HEAP2, RM_XACT
from tidemark.wal.segments import SEGMENT_BYTES_DEFAULT, parse_segment_name, segment_start

PGBENCH_TRANSACTIONS = 20_000
TIMEOUT_S = 300
ROWS = frozenset({RM_HEAP, RM_HEAP2, RM_XACT})


def segments(folder: Path) -> list[tuple[Lsn, Path]]:
    """Return the segments of 16 MB in `folder`, in order."""
    found = []
    for path in folder.iterdir():
        place = parse_segment_name(path.name, SEGMENT_BYTES_DEFAULT)
        if place is not None:
            found.append((segment_start(place[1], SEGMENT_BYTES_DEFAULT), path))
    return sorted(found)


def scan(files: list[tuple[Lsn, Path]], *, parse: bool) -> tuple[Lsn, int]:
    """Return where the records of `files` end, and how many there are."""
    framer = Framer()
    count = 0
    for lsn, path in files:
        framer.feed(lsn, path.read_bytes())
        while isinstance(outcome := framer.next_block(), RecordBlock):
            count += len(outcome)
            if parse:
                for _ in outcome.records(ROWS):
                    pass
        if isinstance(outcome, Invalid):
            break
    return framer.position, count


@contextmanager
def pgbench_wal() -> Iterator[Path]:
    """Make WAL as pgbench writes it."""
    with new_cluster(15, {"wal_keep_size": "2GB", "max_wal_size": "4GB"}) as cluster:
        cluster.client("pgbench", "-i", "-q", "-s", "5", "postgres")
        cluster.client(
            "pgbench", "-n", "-c", "4", "-t", str(PGBENCH_TRANSACTIONS // 4), "postgres", timeout_s=TIMEOUT_S
        )
        cluster.stop()
        yield cluster.data / "pg_wal"


def measure(folder: Path, waldump: Path, rounds: int, *, parse: bool) -> None:
    """Time both, turn by turn, and print what came out."""
    files = segments(folder)
    begin = files[0][0]
    end, count = scan(files, parse=False)  # warms the page cache
    command = [str(waldump), "--quiet", "-p", str(folder), "-s", format_lsn(begin), "-e", format_lsn(end)]
    ours, theirs = [], []
    for _ in range(rounds):
        started = time.perf_counter()
        scan(files, parse=parse)
        ours.append(time.perf_counter() - started)
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)
        theirs.append(time.perf_counter() - started)
    megabytes = (end - begin) / 1e6
    print(f"{megabytes:.0f} MB, {count} records, {rounds} rounds, kernels {'compiled' if COMPILED else 'interpreted'}")
    for name, times in (("tidemark", ours), ("pg_waldump --quiet", theirs)):
        median = statistics.median(times)
        print(
            f"{name:20} {median * 1e3:8.1f} ms  {megabytes / median:8.0f} MB/s  {count / median / 1e6:6.2f} M records/s"
        )
    print(f"{'ratio of medians':20} {statistics.median(ours) / statistics.median(theirs):8.2f}")


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="folder of segments of 16 MB")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--parse", action="store_true", help="parse the records of rows and transactions as well")
    parser.add_argument("--waldump", type=Path, help="the pg_waldump to run")
    arguments = parser.parse_args()
    waldump = arguments.waldump or server(15).client("pg_waldump")
    if arguments.folder:
        measure(arguments.folder, waldump, arguments.rounds, parse=arguments.parse)
    else:
        with pgbench_wal() as folder:
            measure(folder, waldump, arguments.rounds, parse=arguments.parse)


if __name__ == "__main__":
    main()
