"""Compares the decoder of this checkout with the one of another checkout of Tidemark, over the same WAL.

In each round `cdcctl decode` of both checkouts decodes each recording of scripts/bench/decode, this checkout's twice.
The ratio of its two trials is the spread of one version against itself: a difference between the versions is a
difference only outside of it. Each checkout reads a state that its own `cdcctl init` made. The other checkout must have
been installed by its `scripts/install dev`. CPU seconds are those that the decoder reports, without its start.
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scripts.bench.measuring.commands import ROOT, Cost, run_command, timed
from scripts.bench.measuring.machine import machine
from scripts.bench.measuring.rounds import RoundSpread, number, run_trials, spread
from scripts.bench.measuring.workloads import WORKLOADS, Recording, node, record
from tidemark.model.lsn import format_lsn

ROUNDS = 11
ROWS = 1_000_000
FORMATS = ("null", "jsonl", "test_decoding")
NOW, AGAIN, BEFORE = "this checkout", "this checkout again", "before"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One format of one recording: the CPU seconds of each round."""

    workload: str
    format_name: str
    cpu_s: dict[str, list[float]]

    def ratio(self, name: str) -> RoundSpread:
        """CPU seconds of this checkout divided by those of `name` in the same round."""
        return spread([now / other for now, other in zip(self.cpu_s[NOW], self.cpu_s[name], strict=True)])


def _init(before: Path, dsn: str, database: str, state: Path) -> None:
    for checkout in (ROOT, before):
        folder = str(_state_of(checkout, state))
        run_command([_cdcctl(checkout), "init", "--state", folder, "--dsn", dsn, "--database", database])


def _state_of(checkout: Path, state: Path) -> Path:
    return state if checkout == ROOT else state.with_name(f"{state.name}-before")


def _cdcctl(checkout: Path) -> str:
    return str(checkout / ".venv" / "bin" / "cdcctl")


def _decode(checkout: Path, recording: Recording, form: str, expected_rows: int | None) -> Cost:
    command = [_cdcctl(checkout), "decode", "--state", str(_state_of(checkout, recording.state))]
    command += ["--archive", str(recording.archive), "--from", format_lsn(recording.begin)]
    command += ["--to", format_lsn(recording.end), "--format", form]
    if expected_rows is None:
        return timed(command)
    with tempfile.TemporaryFile() as counts:
        cost = timed([*command, "--json"], counts)
        counts.seek(0)
        said = json.load(counts)
    if int(said["rows"]) != expected_rows:
        raise SystemExit(f"{recording.name}: {checkout} found {said['rows']} rows in place of {expected_rows}")
    return Cost(cost.wall_s, cost.cpu_s, float(said["cpu_s"]))


def compare(recording: Recording, before: Path, form: str, rounds: int) -> Comparison:
    """Run the rounds of one format."""
    rows = recording.rows if form == "null" else None
    checkouts = {NOW: ROOT, BEFORE: before, AGAIN: ROOT}
    trials = {name: partial(_decode, checkout, recording, form, rows) for name, checkout in checkouts.items()}
    for trial in (trials[NOW], trials[BEFORE]):
        trial()  # warm-up: writes the byte code, as an installation does
    costs = run_trials(trials, rounds)
    return Comparison(recording.name, form, {name: [_cpu_s(cost) for cost in of] for name, of in costs.items()})


def _cpu_s(cost: Cost) -> float:
    """Return what the decoder reports, or with output the CPU seconds of the process."""
    return cost.cpu_s if math.isnan(cost.inner_cpu_s) else cost.inner_cpu_s


def show(comparison: Comparison) -> None:
    """Print one line of the table."""
    now, before = spread(comparison.cpu_s[NOW]), spread(comparison.cpu_s[BEFORE])
    what = f"{comparison.workload}, {comparison.format_name}"
    ratios = (f"{comparison.ratio(name):.3f}" for name in (BEFORE, AGAIN))
    print("{:24}{:>20}{:>20}{:>23}{:>23}".format(what, f"{before:.2f}", f"{now:.2f}", *ratios), flush=True)


def as_json(comparisons: Sequence[Comparison]) -> list[dict[str, object]]:
    """Return all rounds and the medians of the ratios."""
    return [
        {
            "workload": comparison.workload,
            "format": comparison.format_name,
            "cpu_s": comparison.cpu_s,
            "now_by_before": number(comparison.ratio(BEFORE).median),
            "now_by_itself": number(comparison.ratio(AGAIN).median),
        }
        for comparison in comparisons
    ]


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="the other checkout, installed")
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of the INSERT; the others scale with it")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--workload", action="append", choices=sorted(WORKLOADS), help="only this one; may come again")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    arguments = parser.parse_args()
    before = arguments.before.resolve()
    if not Path(_cdcctl(before)).is_file():
        parser.error(f"{_cdcctl(before)} does not exist: run scripts/install dev in {before}")
    if arguments.rows < 1 or arguments.rounds < 1:
        parser.error("--rows and --rounds are at least 1")
    comparisons = []
    if not arguments.json:
        print(", ".join(f"{name} {value}" for name, value in machine().items()))
        heads = ("CPU s", "before", "now", "now / before", "now / now again")
        print("{:24}{:>20}{:>20}{:>23}{:>23}".format(*heads))
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as folder, node() as cluster:
        for name in dict.fromkeys(arguments.workload or WORKLOADS):
            recording = record(cluster, name, arguments.rows, Path(folder), partial(_init, before))
            for form in FORMATS:
                comparisons.append(compare(recording, before, form, arguments.rounds))
                if not arguments.json:
                    show(comparisons[-1])
    if arguments.json:
        json.dump({**machine(), "rounds": arguments.rounds, "comparisons": as_json(comparisons)}, sys.stdout, indent=2)
        print()
    else:
        print(f"\nmedian (least-most) of {arguments.rounds} rounds; ratios of the same round")


if __name__ == "__main__":
    main()
