"""Compares `cdcctl decode` with one process and with several on the same archive, in alternating trials of one run.

The WAL is of many INSERTs, or of pgbench TPC-B. Each trial is the whole command, start included; `first` has no kept
map, so the command reads the WAL once more to make it. Wall and CPU seconds of all processes, and their ratios to one
process in the same round: with two processes on two free cores the wall ratio should be at least 1.6, the CPU ratio at
most 1.15.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from scripts.bench.measuring.commands import CDCCTL, Cost, init_state, timed
from scripts.bench.measuring.machine import machine
from scripts.bench.measuring.rounds import Trial, run_trials, spread
from scripts.bench.measuring.workloads import Recording, node, record
from tidemark.model.lsn import format_lsn
from tidemark.runtime.replay.transaction_mapping import MAP_FILE

FORMATS = ("null", "jsonl")


def trial(recording: Recording, form: str, jobs: int, *, is_first: bool) -> Cost:
    """Run one command."""
    kept = recording.state / "history" / MAP_FILE
    if is_first:
        kept.unlink(missing_ok=True)
    ends = ("--from", format_lsn(recording.begin), "--to", format_lsn(recording.end))
    words = ["decode", "--state", str(recording.state), "--archive", str(recording.archive), *ends]
    return timed([*CDCCTL, *words, "--format", form, "--jobs", str(jobs)])


def measure(recording: Recording, forms: Sequence[str], jobs: int, rounds: int, seconds: float) -> None:
    """Print the results of some formats."""
    for form in forms:
        trials: dict[str, Trial] = {
            "one process": partial(trial, recording, form, 1, is_first=False),
            f"{jobs} processes, first": partial(trial, recording, form, jobs, is_first=True),
            f"{jobs} processes": partial(trial, recording, form, jobs, is_first=False),
        }
        trial(recording, form, jobs, is_first=False)
        costs = run_trials(trials, rounds, time.monotonic() + seconds)
        one = costs["one process"]
        print(f"\n{form}: {recording.rows:,} rows, {recording.wal_bytes / 1e6:.0f} MB of WAL, {len(one)} rounds")
        for name, found in costs.items():
            wall, cpu = spread([cost.wall_s for cost in found]), spread([cost.cpu_s for cost in found])
            faster = spread([base.wall_s / cost.wall_s for base, cost in zip(one, found, strict=True)])
            dearer = spread([cost.cpu_s / base.cpu_s for base, cost in zip(one, found, strict=True)])
            print(
                f"{name:24} wall {wall:.2f} s, CPU {cpu:.2f} s, wall ratio {faster:.2f}, CPU ratio {dearer:.2f}",
                flush=True,
            )


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=("inserts", "tpcb"), default="inserts")
    parser.add_argument("--rows", type=int, default=6_000_000, help="of tpcb, a fiftieth of it are transactions")
    parser.add_argument("--format", dest="forms", action="append", choices=FORMATS, help="only this one")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60, help="for each format: begin no more rounds after this")
    arguments = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as folder, node() as cluster:
        recording = record(cluster, arguments.workload, arguments.rows, Path(folder), init_state)
        cluster.stop()
        forms = arguments.forms or FORMATS
        measure(recording, forms, arguments.jobs, arguments.rounds, arguments.seconds)


if __name__ == "__main__":
    main()
