"""Commit-to-consumer latency of Tidemark's capture and of pg_recvlogical (pgoutput), in alternating trials on one node.

A writer commits one-row INSERTs at a rate. Tidemark is the sidecar's capture (network, decode, application and confirm
thread, the confirmed position in LMDB) with a custom consumer. The peer is pg_recvlogical's output, read from a pipe.
"stream" receives the physical stream and decodes nothing; "opened" does so and also reads a prepared batch of one row,
as Tidemark's consumer does, which is the lower bound for Tidemark. All use the same unix socket and clock. Each
reader runs alone in its trial, unless --together. Latency is the arrival, with the row's number extracted, minus the
return of the commit at the writer. It can be negative: a stream may be faster than the answer to the writer. "From
stamp" counts from before the INSERT, so it includes the commit. CPU time is the reader's, without the walsender's. Only
comparisons are meaningful on a shared machine.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from scripts.bench.delay.latency_readers import DATABASE, END, READY, TABLE, config_of
from scripts.bench.measuring.machine import machine
from tests.support.servers.postgres import SUPERUSER, Cluster, new_cluster
from tidemark.io.state.state_folder import StateFolder
from tidemark.runtime.seed.initialise import initialise

ROOT = Path(__file__).resolve().parents[3]
MAJOR = 15
SETTINGS = {"autovacuum": "off", "checkpoint_timeout": "1h", "max_wal_size": "4GB", "wal_keep_size": "2GB"}
READERS = ("tidemark", "pg_recvlogical", "stream", "opened")
RATES = (200, 2_000)
COMMITS_PER_WRITER = 1_000  # maximum rate of a writer, a second
QUICK_S, QUICK_TRIALS = 2.0, 1
LEAD_NS = 200_000_000  # from "go" to the first commit
TRIAL_S_MAX = 120.0
SECONDS_MAX = 60
PUBLICATION = SLOT = "bench"


@dataclass(frozen=True, slots=True)
class ReaderRun:
    """One reader's trial at one rate; times in milliseconds, the reader's CPU time in microseconds a commit."""

    reader: str
    rate: int
    achieved: float
    p50: float
    p99: float
    stamp_p50: float
    stamp_p99: float
    cpu_us: float


class Child:
    """A process of this benchmark: it prints "ready", and later a line of JSON."""

    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", f"scripts.bench.delay.{module}", *arguments]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def ready(self) -> None:
        """Wait for "ready"."""
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise SystemExit("a process of the benchmark did not get ready")

    def go(self, at_ns: int) -> None:
        """Send the start time."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{at_ns}\n")

    def result(self) -> dict[str, list[int]]:
        """Wait for the end; return the result."""
        output, _ = self._process.communicate(timeout=TRIAL_S_MAX)
        if self._process.returncode:
            raise SystemExit(f"a process of the benchmark ended with {self._process.returncode}")
        found: dict[str, list[int]] = json.loads(output)
        return found


def run_trial(
    cluster: Cluster, state: Path, ours: str, readers: Sequence[str], number: int, *, rate: int, seconds: float
) -> list[ReaderRun]:
    """Run `readers` while rows are committed at `rate` for some seconds."""
    writers = -(-rate // COMMITS_PER_WRITER)
    count = max(int(rate * seconds) // writers, 1)
    interval_ns = 1_000_000_000 * writers // rate
    dsn = cluster.dsn(DATABASE)
    with ExitStack() as stack, cluster.connect(DATABASE) as session:
        reading = {
            reader: stack.enter_context(
                Child("latency_readers", reader, str(number), *_how(cluster, state, ours, reader))
            )
            for reader in readers
        }
        writing = [
            stack.enter_context(Child("latency_writer", dsn, *map(str, (number, first, writers, count, interval_ns))))
            for first in range(writers)
        ]
        session.execute(f"INSERT INTO {TABLE} VALUES ({number}, {READY}, 0, '')".encode())
        for child in (*reading.values(), *writing):
            child.ready()
        begin_ns = time.monotonic_ns() + LEAD_NS
        for index, child in enumerate(writing):
            child.go(begin_ns + index * interval_ns // writers)
        written = [child.result() for child in writing]
        session.execute(f"INSERT INTO {TABLE} VALUES ({number}, {END}, 0, '')".encode())
        return [_trial(reader, rate, written, child.result()) for reader, child in reading.items()]


def _how(cluster: Cluster, state: Path, ours: str, reader: str) -> list[str]:
    if reader != "pg_recvlogical":
        return [cluster.dsn(DATABASE), *([str(state), ours] if reader == "tidemark" else [])]
    where = ["-h", str(cluster.folder), "-p", str(cluster.port), "-U", SUPERUSER, "-d", DATABASE]
    options = ["-o", "proto_version=1", "-o", f"publication_names={PUBLICATION}"]
    command = [str(cluster.server.client("pg_recvlogical")), *where, "--slot", SLOT, "--start", "--no-loop"]
    return [*command, "--status-interval", "1", "-f", "-", *options]


def _trial(reader: str, rate: int, written: Sequence[dict[str, list[int]]], read: dict[str, list[int]]) -> ReaderRun:
    """Match the written rows with the arrivals; each row must have arrived exactly once."""
    arrived = dict(zip(read["rows"], read["times_ns"], strict=True))
    rows = [row for part in written for row in part["rows"]]
    if sorted(read["rows"]) != sorted(rows):
        raise SystemExit(f"{reader}: {len(rows)} rows were committed, {len(read['rows'])} arrived")
    stamps = [stamp for part in written for stamp in part["stamps_ns"]]
    returns = [at for part in written for at in part["returns_ns"]]
    since_return = [(arrived[row] - at) / 1e6 for row, at in zip(rows, returns, strict=True)]
    since_stamp = [(arrived[row] - at) / 1e6 for row, at in zip(rows, stamps, strict=True)]
    took_s = (max(returns) - min(stamps)) / 1e9
    return ReaderRun(
        reader,
        rate,
        len(rows) / took_s,
        quantile(since_return, 0.50),
        quantile(since_return, 0.99),
        quantile(since_stamp, 0.50),
        quantile(since_stamp, 0.99),
        read["cpu_us"][0] / len(rows),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that is not exceeded by `share` of all values."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def reported(values: Sequence[float], digits: int = 2) -> str:
    """Return median, minimum and maximum."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def show(trials: Sequence[ReaderRun]) -> None:
    """Print the table."""
    heads = ("commits/s", "", "achieved", "p50 ms", "p99 ms", "from stamp p50", "from stamp p99", "CPU us a commit")
    print("{:>9}  {:15}{:>22}{:>24}{:>24}{:>24}{:>24}{:>22}".format(*heads))
    for rate in dict.fromkeys(trial.rate for trial in trials):
        for reader in READERS:
            own = [trial for trial in trials if (trial.rate, trial.reader) == (rate, reader)]
            cells = (
                reported([trial.achieved for trial in own], 0),
                reported([trial.p50 for trial in own]),
                reported([trial.p99 for trial in own]),
                reported([trial.stamp_p50 for trial in own]),
                reported([trial.stamp_p99 for trial in own]),
                reported([trial.cpu_us for trial in own], 0),
            )
            print("{:>9}  {:15}{:>22}{:>24}{:>24}{:>24}{:>24}{:>22}".format(rate, reader, *cells))


def measure(rates: Sequence[int], seconds: float, trials: int, ours: str, *, together: bool) -> list[ReaderRun]:
    """Run all trials: at each rate the readers alternate in rotating order; `ours` is how Tidemark delivers."""
    measured: list[ReaderRun] = []
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as folder, new_cluster(MAJOR, SETTINGS) as cluster:
        cluster.sql(
            f"CREATE TABLE {TABLE} (trial integer, id bigint, stamp_ns bigint, filler text, PRIMARY KEY (trial, id))"
        )
        cluster.sql(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {TABLE}")
        cluster.sql(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
        cluster.sql("CHECKPOINT")
        state = Path(folder) / "state"
        initialise(config_of(cluster.dsn(DATABASE)), StateFolder(state))
        number = 0
        for rate in rates:
            for trial in range(trials):
                order = READERS[trial % len(READERS) :] + READERS[: trial % len(READERS)]
                for readers in (order,) if together else tuple((reader,) for reader in order):
                    number += 1
                    measured += run_trial(cluster, state, ours, readers, number, rate=rate, seconds=seconds)
    return measured


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, action="append", help=f"commits a second; may come again (default {RATES})")
    parser.add_argument("--seconds", type=float, default=5.0, help="of commits in each trial")
    parser.add_argument("--trials", type=int, default=3, help="of each reader at each rate")
    parser.add_argument("--unbatched", action="store_true", help="deliver each commit at once (deliver.rate_max = 0)")
    parser.add_argument("--together", action="store_true", help="both readers at once")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_S} s, {QUICK_TRIALS} trial")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    arguments = parser.parse_args()
    seconds, trials = (QUICK_S, QUICK_TRIALS) if arguments.quick else (arguments.seconds, arguments.trials)
    rates = tuple(dict.fromkeys(arguments.rate or RATES))
    if min(rates) < 1 or not 0 < seconds <= SECONDS_MAX or trials < 1:
        parser.error(f"rates and trials are at least 1, seconds above 0 and at most {SECONDS_MAX}")
    started = time.monotonic()
    about: dict[str, object] = {
        **machine(),
        "seconds": seconds,
        "trials": trials,
        "together": arguments.together,
        "unbatched": arguments.unbatched,
    }
    ours = "unbatched" if arguments.unbatched else "batched"
    measured = measure(rates, seconds, trials, ours, together=arguments.together)
    took_s = round(time.monotonic() - started, 1)
    if arguments.json:
        json.dump({**about, "took_s": took_s, "measured": [asdict(trial) for trial in measured]}, sys.stdout, indent=2)
        print()
    else:
        print(", ".join(f"{name} {value}" for name, value in about.items()))
        show(measured)
        print(f"median of the trials (least to most); {took_s} s in all")


if __name__ == "__main__":
    main()
