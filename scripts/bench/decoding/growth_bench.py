"""The cost of decoding as WAL, transactions and catalogs grow: CPU seconds by WAL, peak memory by rows and by tables.

    rows     one transaction with each of these numbers of rows, of five columns: over 256 MB of packed rows are spilled
    tables   databases with this number of tables: ten thousand rows into one of them, then as many over all tables;
             each row is a transaction
    WAL      the same rows up to this number of GB of WAL; each length is decoded from its beginning

Each trial is a process, `cdcctl decode --format null` over segment files. "Start" is a trial with nothing to decode:
the interpreter, the imports and the catalog; "beside it" is the additional cost of decoding. Memory is the greatest
resident size that the kernel reports. More tables at the start add the catalog itself; rows in all tables instead of
one add the descriptions of the tables in use, and the batches of a group.
The WAL remains in the server's folder and is linked from there: its disk needs 1.5 times the greatest length.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from scripts.bench.measuring.commands import CDCCTL, ROOT, init_state
from scripts.bench.measuring.machine import machine
from scripts.bench.measuring.workloads import CREATE_NARROW, INSERT_NARROW, SETTINGS
from tests.support.servers.postgres import Cluster, Session, new_cluster, sql
from tidemark.model.lsn import Lsn, format_lsn, parse_lsn
from tidemark.wal.segments import SEGMENT_BYTES_DEFAULT, parse_segment_name, segment_start

MAJOR = 15
GIGABYTES, ROWS, TABLES = (1, 2, 4, 8), (500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000), (10, 1_000, 10_000)
QUICK_GIGABYTES, QUICK_ROWS, QUICK_TABLES = (1, 2), (500_000, 1_000_000), (10, 1_000)
FILL_ROWS = 1_000_000  # of each transaction that only fills WAL
TABLES_AT_ONCE = 500  # created in one transaction: each takes locks
STATEMENT_S = 900
POLL_S = 0.01
KEPT_MB_MORE = 4096
CREATE_TABLES = """DO $$ BEGIN FOR n IN {first}..{last} LOOP
    EXECUTE format('CREATE TABLE t_%s (id int PRIMARY KEY, amount numeric, note text)', n);
END LOOP; END $$"""

INSERT_SPREAD = "INSERT INTO t_{table} VALUES ({number}, {number}, 'note {number}')"


@dataclass(frozen=True, slots=True)
class MeasuredRange:
    """A range of WAL, with the folders of its state and its segments."""

    name: str
    begin: Lsn
    end: Lsn
    rows: int
    state: Path
    archive: Path


@dataclass(frozen=True, slots=True)
class RangeCost:
    """The cost of decoding a range."""

    name: str
    wal_bytes: int
    rows: int
    cpu_s: float
    wall_s: float
    peak_mb: float
    start_peak_mb: float


class SourceDatabase:
    """A database of the node, with a state created before all measured changes."""

    def __init__(self, cluster: Cluster, folder: Path, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self.state = folder / f"{name}-state"
        self.archive = folder / f"{name}-wal"

    def begin(self) -> Lsn:
        """Create the state; return the start of the WAL to decode."""
        self._cluster.sql("CHECKPOINT")
        init_state(self._cluster.dsn(self._name), self._name, self.state)
        return self.lsn()

    def lsn(self) -> Lsn:
        """Return the end of WAL."""
        with self.session() as session:
            return parse_lsn(str(sql(session, "SELECT pg_current_wal_insert_lsn()")[0][0]))

    def session(self) -> Session:
        """Return a session with a long statement timeout."""
        session = self._cluster.connect(self._name)
        sql(session, f"SET statement_timeout = '{STATEMENT_S}s'")
        return session

    def link(self, begin: Lsn) -> None:
        """Link the segments, beginning before `begin`: a restart may need earlier ones."""
        with self.session() as session:
            sql(session, "SELECT pg_switch_wal()")
        end = self.lsn()
        self.archive.mkdir()
        for path in (self._cluster.data / "pg_wal").iterdir():
            place = parse_segment_name(path.name, SEGMENT_BYTES_DEFAULT)
            if place is None:
                continue
            start = segment_start(place[1], SEGMENT_BYTES_DEFAULT)
            if begin - 4 * SEGMENT_BYTES_DEFAULT < start < end:
                os.link(path, self.archive / path.name)


def grow(
    cluster: Cluster, folder: Path, rows: Sequence[int], gigabytes: Sequence[int]
) -> tuple[list[MeasuredRange], ...]:
    """Write transactions of these sizes, then more up to the wanted amount of WAL; return the ranges of both kinds."""
    cluster.sql("CREATE DATABASE rows")
    source = SourceDatabase(cluster, folder, "rows")
    with source.session() as session:
        sql(session, CREATE_NARROW)
        first = at = source.begin()
        written, of_rows, of_wal = 0, [], []
        wanted = [(f"{count:,} rows", count) for count in sorted(rows)]
        left = sorted(gigabytes)
        while wanted or left:
            name, count = wanted.pop(0) if wanted else ("", FILL_ROWS)
            sql(session, INSERT_NARROW.format(rows=count))
            here = source.lsn()
            written += count
            if name:
                of_rows.append(MeasuredRange(name, at, here, count, source.state, source.archive))
            while left and here - first >= left[0] << 30:
                of_wal.append(MeasuredRange(f"{left.pop(0)} GB", first, here, written, source.state, source.archive))
            sql(session, "TRUNCATE narrow")
            at = source.lsn()
    source.link(first)
    return of_rows, of_wal


def spread_out(cluster: Cluster, folder: Path, tables: int) -> list[MeasuredRange]:
    """Write rows into one of the tables, then the same number over all tables; return both ranges."""
    name = f"tables_{tables}"
    cluster.sql(f"CREATE DATABASE {name}")
    source = SourceDatabase(cluster, folder, name)
    rows = max(TABLES)
    places = []
    with source.session() as session:
        for first in range(1, tables + 1, TABLES_AT_ONCE):
            sql(session, CREATE_TABLES.format(first=first, last=min(first + TABLES_AT_ONCE - 1, tables)))
        places.append(source.begin())
        for number in range(rows):
            sql(session, INSERT_SPREAD.format(table=1, number=number))
        places.append(source.lsn())
        for number in range(rows):
            sql(session, INSERT_SPREAD.format(table=number % tables + 1, number=rows + number))
        places.append(source.lsn())
    source.link(places[0])
    return [
        MeasuredRange(f"{written} of {tables:,}", begin, end, rows, source.state, source.archive)
        for written, (begin, end) in zip(("one", "all"), pairwise(places), strict=True)
    ]


def decode(stretch: MeasuredRange) -> RangeCost:
    """Decode a range in a separate process."""
    command = [*CDCCTL, "decode", "--state", str(stretch.state), "--archive", str(stretch.archive)]
    command += ["--format", "null", "--json", "--from", format_lsn(stretch.begin), "--to"]
    _, start_peak_mb = _run([*command, format_lsn(stretch.begin)])
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    said, peak_mb = _run([*command, format_lsn(stretch.end)])
    after, wall_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began_s
    if int(said["rows"]) != stretch.rows:
        raise SystemExit(f"{stretch.name}: {said['rows']} rows were decoded, {stretch.rows} written")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return RangeCost(stretch.name, stretch.end - stretch.begin, stretch.rows, cpu_s, wall_s, peak_mb, start_peak_mb)


def _run(command: Sequence[str]) -> tuple[dict[str, float], float]:
    """Run a process; return its output and its peak memory."""
    peak_kib = 0
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen(command, cwd=ROOT, stdout=output) as process:
            while process.poll() is None:
                peak_kib = max(peak_kib, _peak_kib(process.pid))
                time.sleep(POLL_S)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} failed ({process.returncode})")
        output.seek(0)
        said: dict[str, float] = json.load(output)
    return said, peak_kib / 1024


def _peak_kib(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)


def show(kind: str, trials: Sequence[RangeCost]) -> None:
    """Print a table."""
    heads = ("WAL MB", "rows", "wall s", "CPU s", "CPU s a GB", "peak MB", "start MB", "beside it")
    print("\n{:>16}{:>10}{:>12}{:>10}{:>10}{:>12}{:>10}{:>10}{:>11}".format(kind, *heads))
    for trial in trials:
        per_gb = trial.cpu_s / trial.wal_bytes * (1 << 30)
        print(
            f"{trial.name:>16}{trial.wal_bytes / 1e6:>10,.0f}{trial.rows:>12,}{trial.wall_s:>10.2f}{trial.cpu_s:>10.2f}"
            f"{per_gb:>12.2f}{trial.peak_mb:>10.0f}{trial.start_peak_mb:>10.0f}"
            f"{trial.peak_mb - trial.start_peak_mb:>11.0f}",
            flush=True,
        )


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=int, nargs="*", default=GIGABYTES, help="of WAL")
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS, help="of a transaction")
    parser.add_argument("--tables", type=int, nargs="*", default=TABLES)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_GIGABYTES} GB, {QUICK_ROWS} rows, {QUICK_TABLES}")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    given = parser.parse_args()
    if given.quick:
        given.gigabytes, given.rows, given.tables = QUICK_GIGABYTES, QUICK_ROWS, QUICK_TABLES
    if min((*given.gigabytes, *given.rows, *given.tables, given.rounds), default=1) < 1:
        parser.error("all numbers are at least 1")
    started, about = time.monotonic(), machine()
    kept_mb = max(given.gigabytes, default=0) * 1024 + KEPT_MB_MORE
    settings = {**SETTINGS, "wal_keep_size": f"{kept_mb}MB", "max_wal_size": f"{kept_mb}MB"}
    measured: dict[str, list[RangeCost]] = {}
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as folder, new_cluster(MAJOR, settings) as cluster:
        stretches = {"tables": [each for count in given.tables for each in spread_out(cluster, Path(folder), count)]}
        stretches["rows"], stretches["WAL"] = grow(cluster, Path(folder), given.rows, given.gigabytes)
        for kind, found in stretches.items():
            measured[kind] = [decode(stretch) for _ in range(given.rounds) for stretch in found]
            if not given.json:
                show(kind, measured[kind])
    took_s = round(time.monotonic() - started, 1)
    if given.json:
        reported = {kind: [asdict(trial) for trial in trials] for kind, trials in measured.items()}
        json.dump({**about, "took_s": took_s, "measured": reported}, sys.stdout, indent=2)
        print()
    else:
        print(f"\n{took_s} s in all; load {about['load']} at its beginning")


if __name__ == "__main__":
    main()
