"""The cost of reading a node's changes: pgbench TPC-B next to each companion, in alternating trials of one run.

Every round has a trial of each companion, in an order drawn from --seed. Two trials of a round have no companion; their
difference is the noise. A trial begins with a checkpoint, and ends when the companion has caught up: the server's work
for it after the load counts as well. Server CPU is the user and system time of all of the server's processes, walsender
CPU the part of the process that serves the companion (unknown if it ended within the trial), own CPU the companion's.
All share one host, so a busy companion slows the server by its CPU use alone; the companion *busy*, which has no
connection, measures this effect. WAL kept is the content of pg_wal up to the present segment, after a checkpoint, while
the companion still runs, without recycled segments. Only ratios within a round are meaningful on a shared machine.
"""

import argparse
import json
import math
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from scripts.bench.measuring.machine import machine
from scripts.bench.server_load.companions import COMPANIONS, PUBLICATION, Companion, MeasuredNode, cpu_s, wait_for
from scripts.bench.server_load.idle_sidecar import measure_idle, show_idle
from tests.support.servers.postgres import new_cluster, sql
from tidemark.io.node.dsn import APPLICATION_NAME
from tidemark.model.lsn import Lsn, parse_lsn

MAJOR = 15
SETTINGS: Mapping[str, str | int] = {
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
    "max_wal_size": "4GB",
    "min_wal_size": "80MB",
    "wal_keep_size": 0,  # WAL that remains after a checkpoint is then kept for a reader
    "shared_buffers": "256MB",
}
NONE, AGAIN, OURS, SLOT = "nothing", "nothing again", "tidemark", "pgoutput"
WARM_UP_S = 3
QUICK_ROUNDS, QUICK_S = 1, 3
ENDED_S_MAX = 30.0
US_PER_S = 1e6
KEPT = "SELECT sum(size) FROM pg_ls_waldir() WHERE name <= pg_walfile_name(pg_current_wal_insert_lsn())"
COMPANION_PIDS = f"""
    SELECT pid FROM pg_stat_activity WHERE backend_type = 'walsender' OR application_name = '{APPLICATION_NAME}'"""
MARK = "SELECT pg_logical_emit_message(true, 'bench', '')"


@dataclass(frozen=True, slots=True)
class CompanionRun:
    """One companion's trial; CPU in microseconds a transaction, WAL in bytes."""

    companion: str
    round: int
    tps: float
    transactions: int
    server_cpu_us: float
    walsender_cpu_us: float
    reader_cpu_us: float
    catch_up_s: float
    wal_written: int
    wal_kept_before: int
    wal_kept_after: int


class ServerCpu:
    """CPU time of all of the server's processes except the one that serves this benchmark's session."""

    def __init__(self, node: MeasuredNode) -> None:
        self._session = node.session
        self._postmaster = psutil.Process(node.cluster.pid)
        self._own = node.session.info.backend_pid
        self._pids = self._children()
        self._walsenders: list[psutil.Process] = []
        for pid in self._streams():
            with suppress(psutil.NoSuchProcess):  # a connection of the start that has just ended
                self._walsenders.append(psutil.Process(pid))
        self._before_s, self._walsenders_before_s = self._total_s(), self._walsenders_s()

    def taken_s(self) -> float:
        """Return the CPU time since the start, once the load's backends have ended."""
        # NB: a sidecar reconnects after its ring was full, or to write a marker: those backends do not belong to the
        # load.
        wait_for(lambda: self._children() - self._companions() <= self._pids, ENDED_S_MAX, "the end of the load")
        return self._total_s() - self._before_s

    def walsender_taken_s(self) -> float:
        """Return the walsenders' part of it; nan if one has ended."""
        return self._walsenders_s() - self._walsenders_before_s

    def _walsenders_s(self) -> float:
        try:
            return sum(map(cpu_s, self._walsenders))
        except psutil.NoSuchProcess:
            return math.nan

    def _streams(self) -> set[int]:
        return {int(pid) for (pid,) in sql(self._session, "SELECT pid FROM pg_stat_replication")}

    def _companions(self) -> set[int]:
        return {int(pid) for (pid,) in sql(self._session, COMPANION_PIDS)}

    def _children(self) -> set[int]:
        return {child.pid for child in self._postmaster.children()}

    def _total_s(self) -> float:
        total_s = cpu_s(self._postmaster)
        for child in self._postmaster.children():
            with suppress(psutil.NoSuchProcess):  # the postmaster's sum contains it the next time
                total_s += cpu_s(child) if child.pid != self._own else 0.0
        return total_s


def run_trial(node: MeasuredNode, name: str, companion: Companion, number: int, load: Sequence[str]) -> CompanionRun:
    """Run pgbench next to a companion."""
    sql(node.session, "CHECKPOINT")
    kept_before = _kept(node)
    with companion(node) as reader:
        began = _mark(node)
        server, reader_before_s = ServerCpu(node), reader.cpu_s()
        tps, transactions = run_load(node, load)
        end = _mark(node)
        catch_up_s = reader.catch_up(end)
        walsender_s, server_s = server.walsender_taken_s(), server.taken_s()
        reader_s = reader.cpu_s() - reader_before_s
        sql(node.session, "CHECKPOINT")
        return CompanionRun(
            name,
            number,
            tps,
            transactions,
            server_s / transactions * US_PER_S,
            walsender_s / transactions * US_PER_S,
            reader_s / transactions * US_PER_S,
            catch_up_s,
            end - began,
            kept_before,
            _kept(node),
        )


def run_load(node: MeasuredNode, load: Sequence[str]) -> tuple[float, int]:
    """Run pgbench; return transactions a second and their number."""
    said = node.cluster.client("pgbench", *load, "postgres")
    tps = re.search(r"tps = ([\d.]+)", said)
    transactions = re.search(r"number of transactions actually processed: (\d+)", said)
    if tps is None or transactions is None or not int(transactions.group(1)):
        raise SystemExit(f"pgbench said:\n{said}")
    return float(tps.group(1)), int(transactions.group(1))


def _mark(node: MeasuredNode) -> Lsn:
    ((lsn,),) = sql(node.session, MARK)
    return parse_lsn(str(lsn))


def _kept(node: MeasuredNode) -> int:
    ((size,),) = sql(node.session, KEPT)
    return int(size)


def measure(names: Sequence[str], rounds: int, load: Sequence[str], *, scale: int, seed: int) -> list[CompanionRun]:
    """Run all rounds on one node."""
    order = random.Random(seed)
    trials: list[CompanionRun] = []
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as scratch, new_cluster(MAJOR, SETTINGS) as cluster:
        cluster.client("pgbench", "--initialize", "--quiet", "--scale", str(scale), "postgres")
        cluster.sql(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
        with cluster.connect() as session:
            node = MeasuredNode(cluster, session, Path(scratch))
            run_load(node, [*load, "--time", str(WARM_UP_S)])
            for number in range(rounds):
                for name in order.sample(names, len(names)):
                    trials.append(run_trial(node, name, COMPANIONS[name], number, load))
                    print(f"round {number + 1}: {name}: {trials[-1].tps:.0f} tps", file=sys.stderr)
    return trials


def ratios(trials: Sequence[CompanionRun], name: str, what: str) -> list[float]:
    """Return a figure of a companion divided by the mean of the two trials without a companion in the same round."""
    found = {(trial.companion, trial.round): float(asdict(trial)[what]) for trial in trials}
    rounds = sorted({trial.round for trial in trials})
    return [found[name, number] / statistics.mean((found[NONE, number], found[AGAIN, number])) for number in rounds]


def reported(values: Sequence[float], digits: int = 2) -> str:
    """Return median, minimum and maximum."""
    if any(map(math.isnan, values)):
        return "-"
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"


def show(names: Sequence[str], trials: Sequence[CompanionRun]) -> None:
    """Print the table, and the noise level."""
    heads = ("", "tps", "ratio", "server CPU us/tx", "ratio", "walsender", "own CPU us/tx", "catch-up s")
    line = "{:25}{:>22}{:>18}{:>20}{:>18}{:>14}{:>22}{:>16}{:>25}"
    print(line.format(*heads, "WAL kept MB, of written"))
    for name in names:
        own = [trial for trial in trials if trial.companion == name]
        before, after, written = (
            statistics.median(getattr(trial, what) for trial in own) / (1 << 20)
            for what in ("wal_kept_before", "wal_kept_after", "wal_written")
        )
        cells = (
            reported([trial.tps for trial in own], 0),
            reported(ratios(trials, name, "tps")),
            reported([trial.server_cpu_us for trial in own], 0),
            reported(ratios(trials, name, "server_cpu_us")),
            reported([trial.walsender_cpu_us for trial in own], 0),
            reported([trial.reader_cpu_us for trial in own], 0),
            reported([trial.catch_up_s for trial in own], 1),
            f"{before:.0f} to {after:.0f}, {written:.0f}",
        )
        print(line.format(name, *cells))
    for what, words in (("tps", "tps"), ("server_cpu_us", "server CPU")):
        apart = reported(_apart(trials, what))
        print(f"nothing again by nothing, {words}: {apart}: a ratio within that says nothing")


def _as_json(trial: CompanionRun) -> dict[str, str | float | None]:
    """Return a trial as a JSON value."""
    return {name: None if value != value else value for name, value in asdict(trial).items()}  # noqa: PLR0124 - nan


def _apart(trials: Sequence[CompanionRun], what: str) -> list[float]:
    first, second = (
        [
            float(asdict(trial)[what])
            for trial in sorted(trials, key=lambda trial: trial.round)
            if trial.companion == name
        ]
        for name in (NONE, AGAIN)
    )
    return [later / earlier for earlier, later in zip(first, second, strict=True)]


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=10, help="of load in each trial")
    parser.add_argument("--clients", type=int, default=2, help="of pgbench")
    parser.add_argument("--rate", type=int, default=0, help="transactions a second; 0: as many as go")
    parser.add_argument("--scale", type=int, default=10, help="of pgbench")
    parser.add_argument("--seed", type=int, default=1, help="of the order of trials")
    parser.add_argument("--only", action="append", choices=list(COMPANIONS)[2:], help="these; may come again")
    parser.add_argument("--idle-tables", type=int, help="instead: an idle, restarted sidecar of so many tables")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} round of {QUICK_S} s")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    given = parser.parse_args()
    rounds, seconds = (QUICK_ROUNDS, QUICK_S) if given.quick else (given.rounds, given.seconds)
    if min(rounds, seconds, given.clients, given.scale) < 1 or given.rate < 0:
        parser.error("rounds, seconds, clients and scale are at least 1, rate is not negative")
    if given.idle_tables is not None:
        show_idle(measure_idle(MAJOR, given.idle_tables, seconds))
        return
    names = [name for name in COMPANIONS if name in (NONE, AGAIN) or not given.only or name in given.only]
    about: dict[str, object] = {
        **machine(),
        "rounds": rounds,
        "seconds": seconds,
        "clients": given.clients,
        "rate": given.rate or "as many as go",
        "scale": given.scale,
        "seed": given.seed,
    }
    started = time.monotonic()
    load = ["--client", str(given.clients), "--jobs", str(given.clients), "--time", str(seconds)]
    load += ["--rate", str(given.rate)] if given.rate else []
    trials = measure(names, rounds, load, scale=given.scale, seed=given.seed)
    took_s = round(time.monotonic() - started, 1)
    if given.json:
        json.dump({**about, "took_s": took_s, "trials": [_as_json(trial) for trial in trials]}, sys.stdout, indent=2)
        print()
    else:
        print(", ".join(f"{name} {value}" for name, value in about.items()))
        show(names, trials)
        print(f"median of the rounds (least-most); {took_s} s in all")


if __name__ == "__main__":
    main()
