"""Compares Tidemark's decoder with pg_waldump and pg_recvlogical on the same WAL, in alternating trials of one run.

    insert  one INSERT of --rows rows of five columns
    tpcb    pgbench TPC-B, --rows / 50 transactions of four changes
    wide    UPDATEs of --rows / 10 rows of 16 mixed columns

and, only by --workload, COPY and DDL that writes as many rows (copy, copy_truncated, copy_created, create_as, rewrite),
INSERT ... ON CONFLICT (upsert), and values stored out of line (large, toasted) or in their rows (inline).

Each trial is a whole process over the same range of WAL; the order changes with each round. Tidemark decodes segment
files to Arrow batches and discards them; pg_recvlogical receives text from a walsender and discards it; pg_waldump only
reads records and checks their CRC. It is compared with Tidemark with no table selected, minus its start (`scan ratio`:
Tidemark's CPU seconds divided by pg_waldump's). Tidemark also runs with each option and format that takes another path
through the code, and as `tail` with a state, start included. Any other ratio is the other's time divided by Tidemark's
in the same round: above 1, Tidemark was faster. Only ratios are meaningful on a shared machine.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.bench.decoding.contestants import OURS, SCANNING, STARTING, WALDUMP, Contestant, contestants
from scripts.bench.measuring.commands import Cost, init_state, without_start
from scripts.bench.measuring.machine import machine
from scripts.bench.measuring.rounds import RoundSpread, number, run_trials, spread
from scripts.bench.measuring.workloads import ALL_WORKLOADS, SETTINGS, WORKLOADS, Recording, node, record

NET = "tidemark, less its start"
QUICK_ROWS = 100_000
QUICK_ROUNDS = 2
SECONDS = 150
LEAST_S = 1e-3


@dataclass(frozen=True, slots=True)
class ContestantResult:
    """All rounds of one contestant on one recording."""

    name: str
    costs: Sequence[Cost]

    def wall(self) -> RoundSpread:
        """Wall seconds."""
        return spread([cost.wall_s for cost in self.costs])

    def cpu(self) -> RoundSpread:
        """CPU seconds of all processes of the contestant."""
        return spread([cost.cpu_s for cost in self.costs])

    def wall_by(self, other: "ContestantResult") -> RoundSpread:
        """Wall seconds divided by those of `other` in the same round."""
        return spread([own.wall_s / theirs.wall_s for own, theirs in zip(self.costs, other.costs, strict=True)])

    def cpu_by(self, other: "ContestantResult") -> RoundSpread:
        """CPU seconds divided by those of `other` in the same round."""
        return spread([own.cpu_s / theirs.cpu_s for own, theirs in zip(self.costs, other.costs, strict=True)])


def run_rounds(entrants: Sequence[Contestant], rounds: int, deadline_s: float) -> list[ContestantResult]:
    """Run all contestants in each round, in rotating order; start no round after `deadline_s`, except the first."""
    costs = run_trials({entrant.name: entrant.trial for entrant in entrants}, rounds, deadline_s)
    own, scanning, starts = costs.pop(OURS), costs.pop(SCANNING), costs.pop(STARTING)
    ours = {OURS: own, NET: _net(own, starts), SCANNING: _net(scanning, starts)}
    return [ContestantResult(name, values) for name, values in {**ours, **costs}.items()]


def _net(wholes: Sequence[Cost], starts: Sequence[Cost]) -> list[Cost]:
    """Return the cost of each trial minus the start in the same round."""
    return [
        Cost(without_start(whole.wall_s, start.wall_s), max(whole.inner_cpu_s, LEAST_S))
        for whole, start in zip(wholes, starts, strict=True)
    ]


def scan_ratio(results: Sequence[ContestantResult]) -> RoundSpread:
    """Return the cost with nothing selected, minus the start, divided by pg_waldump's."""
    by_name = {result.name: result for result in results}
    return by_name[SCANNING].cpu_by(by_name[WALDUMP])


def as_json(recording: Recording, results: Sequence[ContestantResult]) -> dict[str, object]:
    """Return the results for a recording."""
    own = results[0]
    return {
        "workload": recording.name,
        "what": recording.what,
        "rows": recording.rows,
        "wal_bytes": recording.wal_bytes,
        "scan_cpu_ratio": number(scan_ratio(results).median),
        "contestants": {
            result.name: {
                "wall_s": [number(cost.wall_s) for cost in result.costs],
                "cpu_s": [number(cost.cpu_s) for cost in result.costs],
                "mb_per_s": number(recording.wal_bytes / 1e6 / result.wall().median),
                "rows_per_s": number(recording.rows / result.wall().median),
                "rows_per_cpu_s": number(recording.rows / result.cpu().median),
                "wall_ratio": number(result.wall_by(own).median),
                "cpu_ratio": number(result.cpu_by(own).median),
            }
            for result in results
        },
    }


def show(recording: Recording, results: Sequence[ContestantResult]) -> None:
    """Print a table immediately, because the next workload takes long."""
    megabytes = recording.wal_bytes / 1e6
    rounds = len(results[0].costs)
    print(f"\n{recording.name}: {recording.what}; {recording.rows:,} rows, {megabytes:.1f} MB of WAL, {rounds} rounds")
    heads = ("", "wall s", "CPU s", "MB/s", "rows/s", "rows/CPU s", "wall ratio", "CPU ratio")
    line = "{:29}{:>20}{:>20}{:>8}{:>11}{:>11}{:>20}{:>20}"
    print(line.format(*heads))
    own = results[0]
    for result in results:
        wall, cpu = result.wall(), result.cpu()
        speeds = (megabytes / wall.median, recording.rows / wall.median, recording.rows / cpu.median)
        reported = ("-" if math.isnan(speed) else f"{speed:,.0f}" for speed in speeds)
        ratios = (f"{result.wall_by(own):.2f}", f"{result.cpu_by(own):.2f}")
        print(line.format(result.name, f"{wall:.2f}", f"{cpu:.2f}", *reported, *ratios), flush=True)
    print(f"scan ratio {scan_ratio(results):.2f}", flush=True)


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the INSERT; the others scale with it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="begin no more rounds after this, but one each")
    parser.add_argument(
        "--workload", action="append", choices=sorted(ALL_WORKLOADS), help="only this one; may come again"
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} rows, {QUICK_ROUNDS} rounds")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    arguments = parser.parse_args()
    rows, rounds = (QUICK_ROWS, QUICK_ROUNDS) if arguments.quick else (arguments.rows, arguments.rounds)
    if rows < 1 or rounds < 1:
        parser.error("--rows and --rounds are at least 1")
    started = time.monotonic()
    about = {**machine(), "settings": SETTINGS}
    measured = []
    if not arguments.json:
        print(", ".join(f"{name} {value}" for name, value in about.items() if name != "settings"))
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as folder, node() as cluster:
        names = list(dict.fromkeys(arguments.workload or WORKLOADS))
        for number, name in enumerate(names):
            left_s = started + arguments.seconds - time.monotonic()
            deadline_s = time.monotonic() + left_s / (len(names) - number)
            recording = record(cluster, name, rows, Path(folder), init_state)
            with cluster.connect(name) as session:
                results = run_rounds(contestants(cluster, session, recording), rounds, deadline_s)
            measured.append(as_json(recording, results))
            if not arguments.json:
                show(recording, results)
    took_s = round(time.monotonic() - started, 1)
    if arguments.json:
        json.dump({**about, "took_s": took_s, "workloads": measured}, sys.stdout, indent=2)
        print()
    else:
        print(f"\nmedian (least-most) of the rounds; ratio: theirs by ours, same round; {took_s} s in all")


if __name__ == "__main__":
    main()
