"""Compares Tidemark's scan of WAL, CRC included, with `pg_waldump --quiet` on the same segments, in alternating trials.

Prints medians of wall and processor time and their ratios. Only ratios are meaningful on a shared machine, best those
of processor time. Without a folder it creates WAL with pgbench on a temporary PostgreSQL 15. Tidemark is timed inside
the process, from the first open to the last record; pg_waldump is timed as a whole process, whose start takes a few
milliseconds.

    scripts/bench/scan [--rounds 7] [--parse] [--waldump PATH] [FOLDER]      # an absolute path
"""

import argparse
import resource
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers.postgres import new_cluster
from tests.support.servers.servers import server
from tidemark.model.lsn import Lsn, format_lsn
from tidemark.wal.kernel import COMPILED
from tidemark.wal.page import Framer, Invalid, RecordBlock
from tidemark.wal.rmgr import RM_HEAP, RM_HEAP2, RM_XACT
from tidemark.wal.segments import SEGMENT_BYTES_DEFAULT, parse_segment_name, segment_start

PGBENCH_TRANSACTIONS = 20_000
TIMEOUT_S = 300
READ_BYTES = 1 << 20
ROWS = frozenset({RM_HEAP, RM_HEAP2, RM_XACT})


def segments(folder: Path) -> list[tuple[Lsn, Path]]:
    """Return the 16 MB segments in `folder`, in order."""
    found = []
    for path in folder.iterdir():
        place = parse_segment_name(path.name, SEGMENT_BYTES_DEFAULT)
        if place is not None:
            found.append((segment_start(place[1], SEGMENT_BYTES_DEFAULT), path))
    return sorted(found)


def scan(files: list[tuple[Lsn, Path]], *, parse: bool) -> tuple[Lsn, int]:
    """Return the end LSN of the records in `files`, and their number."""
    framer = Framer()
    count = 0
    buffer = memoryview(bytearray(READ_BYTES))
    for start_lsn, path in files:
        with path.open("rb", buffering=0) as segment:
            lsn = start_lsn
            while size := segment.readinto(buffer):
                framer.feed(lsn, buffer[:size])
                lsn = Lsn(lsn + size)
                while isinstance(outcome := framer.next_block(), RecordBlock):
                    count += len(outcome)
                    if parse:
                        for _ in outcome.records(ROWS):
                            pass
                    framer.reuse(outcome)
                if isinstance(outcome, Invalid):
                    return framer.position, count
    return framer.position, count


@contextmanager
def pgbench_wal() -> Iterator[Path]:
    """Create WAL with pgbench."""
    with new_cluster(15, {"wal_keep_size": "2GB", "max_wal_size": "4GB"}) as cluster:
        cluster.client("pgbench", "-i", "-q", "-s", "5", "postgres")
        cluster.client(
            "pgbench", "-n", "-c", "4", "-t", str(PGBENCH_TRANSACTIONS // 4), "postgres", timeout_s=TIMEOUT_S
        )
        cluster.stop()
        yield cluster.data / "pg_wal"


def measure(folder: Path, waldump: Path, rounds: int, *, parse: bool) -> None:
    """Time both in alternating trials, and print the results."""
    files = segments(folder)
    begin = files[0][0]
    end, count = scan(files, parse=False)  # warms the page cache
    command = [str(waldump), "--quiet", "-p", str(folder), "-s", format_lsn(begin), "-e", format_lsn(end)]
    runs: dict[str, list[tuple[float, float]]] = {"tidemark": [], "pg_waldump --quiet": []}
    for _ in range(rounds):
        wall, processor = time.perf_counter(), time.process_time()
        scan(files, parse=parse)
        runs["tidemark"].append((time.perf_counter() - wall, time.process_time() - processor))
        wall, processor = time.perf_counter(), children_s()
        subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)
        runs["pg_waldump --quiet"].append((time.perf_counter() - wall, children_s() - processor))
    megabytes = (end - begin) / 1e6
    print(f"{megabytes:.0f} MB, {count} records, {rounds} rounds, kernels {'compiled' if COMPILED else 'interpreted'}")
    medians = {}
    for name, times in runs.items():
        wall, processor = (statistics.median(column) for column in zip(*times, strict=True))
        medians[name] = wall, processor
        speed = f"{megabytes / processor:8.0f} MB/s  {count / processor / 1e6:6.2f} M records/s"
        print(f"{name:20} wall {wall * 1e3:8.1f} ms   processor {processor * 1e3:8.1f} ms  {speed}")
    wall, processor = (ours / theirs for ours, theirs in zip(*medians.values(), strict=True))
    print(f"{'ratio':20} wall {wall:8.2f}      processor {processor:8.2f}")


def children_s() -> float:
    """Return the processor time of all ended child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


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
