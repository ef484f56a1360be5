"""CPU of the walsender that serves Tidemark, and of one that decodes with pgoutput, for the same WAL.

The trials alternate in one run. The workloads are those of `scripts/bench/decode`. The WAL exists before a trial
begins, so walsenders send as much at once as they can; `scripts/bench/overhead` measures a load whose commits are sent
one by one. Tidemark is the client of the sidecar's network thread, which receives and discards; the peer is
pg_recvlogical without output. The CPU time is that of the walsender process, from its start to the end of the range, by
the scheduler's clock.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from scripts.bench.measuring.commands import init_state
from scripts.bench.measuring.machine import machine
from scripts.bench.measuring.slots import PLUGIN_OPTIONS
from scripts.bench.measuring.workloads import WORKLOADS, Recording, node, record, source_slot
from tests.support.servers.postgres import SUPERUSER, Cluster, Session, sql
from tidemark.io.node.replication import WalStream
from tidemark.model.lsn import Lsn, parse_lsn
from tidemark.wal.segments import first_page_lsn

OURS, PEER = "tidemark", "pgoutput"
PLUGIN = "pgoutput"
TRIAL_S_MAX = 300.0
POLL_S = 0.02
QUICK_ROWS, QUICK_ROUNDS = 100_000, 2


@dataclass(frozen=True, slots=True)
class WalsenderRun:
    """One walsender's work on one range of WAL."""

    workload: str
    reader: str
    round: int
    cpu_s: float


def walsender_cpu_s(session: Session) -> float | None:
    """Return the CPU seconds of the only walsender; None if there is none."""
    found = sql(session, "SELECT pid FROM pg_stat_replication")
    if not found:
        return None
    (pid,) = (int(pid) for (pid,) in found)
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    except FileNotFoundError:
        return None


def receive(cluster: Cluster, session: Session, recording: Recording) -> float:
    """Receive and discard the physical stream from begin to end; return the walsender's CPU seconds."""
    with WalStream(cluster.dsn(recording.database)) as stream:
        here = stream.identify()
        stream.start(first_page_lsn(recording.begin), here.timeline)
        deadline = time.monotonic() + TRIAL_S_MAX
        while stream.received_lsn < recording.end:
            stream.read(POLL_S)
            if time.monotonic() > deadline:
                raise SystemExit("the stream did not come to the end")
        return _taken_s(session)


def decode(cluster: Cluster, session: Session, recording: Recording) -> float:
    """Receive from begin to end with pg_recvlogical, without output; return the walsender's CPU seconds."""
    slot = f"{source_slot(recording.name, PLUGIN)}_trial"
    where = ["-h", str(cluster.folder), "-p", str(cluster.port), "-U", SUPERUSER, "-d", recording.database]
    options = [part for option in PLUGIN_OPTIONS[PLUGIN] for part in ("-o", option)]
    command = [str(cluster.server.client("pg_recvlogical")), *where, "--slot", slot, "--start", "--no-loop"]
    sql(session, f"SELECT pg_copy_logical_replication_slot('{source_slot(recording.name, PLUGIN)}', '{slot}')")
    try:
        with subprocess.Popen([*command, "-f", "-", *options], stdout=subprocess.DEVNULL) as process:
            try:
                _wait(lambda: _sent(session) >= recording.end)
                return _taken_s(session)
            finally:
                process.kill()
    finally:
        _wait(partial(_is_gone, session))
        sql(session, f"SELECT pg_drop_replication_slot('{slot}')")


def _taken_s(session: Session) -> float:
    taken_s = walsender_cpu_s(session)
    if taken_s is None:
        raise SystemExit("the walsender is gone")
    return taken_s


def _is_gone(session: Session) -> bool:
    return walsender_cpu_s(session) is None


def _sent(session: Session) -> Lsn:
    found = sql(session, "SELECT sent_lsn FROM pg_stat_replication WHERE sent_lsn IS NOT NULL")
    return parse_lsn(str(found[0][0])) if found else Lsn(0)


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TRIAL_S_MAX
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("a walsender did not come to its end")
        time.sleep(POLL_S)


READERS = {OURS: receive, PEER: decode}


def measure(names: Sequence[str], rows: int, rounds: int) -> tuple[list[WalsenderRun], dict[str, int]]:
    """Run all trials; return them, and a workload's bytes of WAL."""
    trials: list[WalsenderRun] = []
    sizes: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as folder, node() as cluster:
        for name in names:
            recording = record(cluster, name, rows, Path(folder), init_state)
            sizes[name] = recording.wal_bytes
            with cluster.connect(name) as session:
                for number in range(rounds):
                    for reader in list(READERS)[:: 1 if number % 2 == 0 else -1]:
                        trials.append(WalsenderRun(name, reader, number, READERS[reader](cluster, session, recording)))
                        _wait(partial(_is_gone, session))
    return trials, sizes


def show(trials: Sequence[WalsenderRun], sizes: dict[str, int]) -> None:
    """Print the table."""
    print(f"{'':10}{'WAL MB':>9}{'ours, CPU s':>26}{'pgoutput, CPU s':>26}{'pgoutput by ours':>26}")
    for name, size in sizes.items():
        ours, theirs = (
            [trial.cpu_s for trial in trials if (trial.workload, trial.reader) == (name, reader)] for reader in READERS
        )
        by = [their / own for own, their in zip(ours, theirs, strict=True)]
        print(f"{name:10}{size / 1e6:>9.0f}{_reported(ours, 3):>26}{_reported(theirs, 2):>26}{_reported(by, 1):>26}")


def _reported(values: Sequence[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the INSERT; the others scale with it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workload", action="append", choices=sorted(WORKLOADS), help="only this one; may come again")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} rows, {QUICK_ROUNDS} rounds")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    given = parser.parse_args()
    rows, rounds = (QUICK_ROWS, QUICK_ROUNDS) if given.quick else (given.rows, given.rounds)
    if rows < 1 or rounds < 1:
        parser.error("--rows and --rounds are at least 1")
    started, about = time.monotonic(), machine()
    trials, sizes = measure(list(dict.fromkeys(given.workload or WORKLOADS)), rows, rounds)
    took_s = round(time.monotonic() - started, 1)
    if given.json:
        reported = [asdict(trial) for trial in trials]
        json.dump({**about, "took_s": took_s, "wal_bytes": sizes, "trials": reported}, sys.stdout, indent=2)
        print()
    else:
        print(", ".join(f"{name} {value}" for name, value in about.items()))
        show(trials, sizes)
        print(f"median (least-most) of the rounds; {took_s} s in all")


if __name__ == "__main__":
    main()
