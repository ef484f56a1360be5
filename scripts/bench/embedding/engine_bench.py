"""The library's engine: what its pool does a second, and a large transaction beside Debezium's embedded engine.

    matrix      precomputed groups of five columns, no sink, Debezium's JSON: workers x order, beside Debezium's engine
                with as many threads, over records that its connector would make; it has no order by key
    transform   batches with a transform of 1 ms, without order: by sleeping with 1 to 8 workers, by CPU with one
    live        one INSERT of --rows rows from a live server; both engines mask and make JSON, which a handler discards

Tidemark's live engine also renames a column, which Debezium's envelope has no option for. Seconds of `live` count from
the first batch to the last, extrapolated to all rows, without the starts; CPU seconds are those of the whole process,
start included, and of the walsender. A ratio of `live` is Debezium's cost divided by Tidemark's in the same round.
Debezium is that of `scripts/bench/debezium`.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path

from scripts.bench.decoding.debezium_bench import CACHE, PACKAGE, THEIRS, Debezium, arrival_cost, environment
from scripts.bench.delivery.chain_stages import decoded, measured
from scripts.bench.embedding.pool_trials import (
    TRANSFORM_S,
    TRANSFORMED_BATCHES,
    compute,
    groups_to_transform,
    json_rows,
    opened_context,
    sleep,
    transformed_batches,
)
from scripts.bench.embedding.precomputed_debezium import ORDERS, PrecomputedDebezium
from scripts.bench.measuring.commands import Cost, init_state
from scripts.bench.measuring.machine import machine
from scripts.bench.measuring.rounds import Trial, number, ratios, run_trials, spread
from scripts.bench.measuring.workloads import SETTINGS, Recording, node, record
from tests.support.servers.postgres import Cluster
from tidemark import DebeziumJson, Engine, Order, SerializedBatch

WORKLOAD = "insert"
MASK = "column.mask.with.12.chars=public.narrow.label"
WORKERS = (1, 2, 4)
SLEEPING_WORKERS = (1, 2, 4, 8)
LIVE_WORKERS = 2
PROGRAM = "scripts.bench.embedding.engine_trial"
PARTS = ("matrix", "transform", "live")
QUICK_ROWS = 100_000
QUICK_ROUNDS = 1


def live_state(state: Path, number: int) -> Path:
    """Return the state of a round: a state folder cannot be copied, so each round has one from before the rows."""
    return state.with_name(f"{state.name}-live-{number}")


def init_states(dsn: str, database: str, state: Path, rounds: int) -> None:
    """Create the state of the decoder, and one of an engine for each round."""

    def refuse(batch: SerializedBatch) -> None:
        raise SystemExit(f"rows of {batch.table} before the workload")

    init_state(dsn, database, state)
    settings = {"copy": {"enabled": False}}
    for each in range(rounds):
        path = live_state(state, each)
        with Engine(dsn, state=path, serializer=DebeziumJson(), handler=refuse, settings=settings):
            pass


def live_trials(debezium: Debezium, dsn: str) -> Mapping[str, Trial]:
    """Return the engines over the live server."""
    recording, numbers = debezium.recording, count()

    def ours() -> Cost:
        state = live_state(recording.state, next(numbers))
        command = [sys.executable, "-m", PROGRAM, "--dsn", dsn, "--state", str(state), "--rows", str(recording.rows)]
        command += ["--workers", str(LIVE_WORKERS), "--order", Order.TOTAL.value]
        return arrival_cost("Tidemark", command, recording.rows, debezium.cluster)

    return {THEIRS: debezium.trial, "tidemark, Debezium's JSON": ours}


def matrix_trials(recording: Recording, theirs: PrecomputedDebezium) -> Mapping[str, Mapping[str, Trial]]:
    """Return the trials of the matrix by the number of workers, ours and Debezium's."""
    groups = decoded(recording)

    def matrix(workers: int, order: Order) -> Cost:
        with opened_context() as context:
            return measured(partial(json_rows, context, groups, workers, order), recording.rows)

    return {
        f"{workers} workers": {
            **{f"Debezium, {order.value}": partial(theirs.trial, recording.rows, workers, order) for order in ORDERS},
            **{f"Tidemark, {order.value}": partial(matrix, workers, order) for order in Order},
        }
        for workers in WORKERS
    }


def transform_trials() -> Mapping[str, Trial]:
    """Return the trials of the transform."""
    single_rows = groups_to_transform()

    def transform(workers: int, *, by_cpu: bool) -> Cost:
        work = compute if by_cpu else sleep
        with opened_context() as context:
            return measured(partial(transformed_batches, context, single_rows, work, workers), TRANSFORMED_BATCHES)

    sleeping = {
        f"sleeping, {workers} workers": partial(transform, workers, by_cpu=False) for workers in SLEEPING_WORKERS
    }
    return {**sleeping, "by CPU, 1 workers": partial(transform, 1, by_cpu=True)}


def show(what: str, costs: Mapping[str, Sequence[Cost]], done: int, base: str) -> dict[str, object]:
    """Print a table; return the same for machines. Ratios are those of `base` by each one."""
    print(f"\n{what}; ratio: {base} by each one", file=sys.stderr)
    line = "{:28}{:>20}{:>20}{:>14}{:>20}{:>20}"
    print(line.format("", "wall s", "CPU s", "a second", "wall ratio", "CPU ratio"), file=sys.stderr)
    reported: dict[str, object] = {}
    for name, own in costs.items():
        wall, cpu = (spread([getattr(cost, which) for cost in own]) for which in ("wall_s", "cpu_s"))
        wall_ratio, cpu_ratio = (spread(ratios(costs[base], own, which)) for which in ("wall_s", "cpu_s"))
        shown = (f"{wall:.2f}", f"{cpu:.2f}", f"{done / wall.median:,.0f}", f"{wall_ratio:.2f}", f"{cpu_ratio:.2f}")
        print(line.format(name, *shown), file=sys.stderr, flush=True)
        reported[name] = {
            "wall_s": [number(cost.wall_s) for cost in own],
            "cpu_s": [number(cost.cpu_s) for cost in own],
            "a_second": number(done / wall.median),
            "wall_ratio": number(wall_ratio.median),
            "cpu_ratio": number(cpu_ratio.median),
        }
    return reported


def measure(
    cluster: Cluster, python: Path, recording: Recording, parts: Sequence[str], rounds: int
) -> dict[str, object]:
    """Run the parts, and print each table immediately."""
    rows = recording.rows
    reported: dict[str, object] = {}
    if "matrix" in parts:
        with tempfile.TemporaryDirectory(prefix="tm-bench-") as classes:
            matrix = matrix_trials(recording, PrecomputedDebezium(python, Path(classes)))
            for workers, trials in matrix.items():
                what = f"precomputed groups to JSON, {workers}"
                reported[what] = show(what, run_trials(trials, rounds), rows, next(iter(trials)))
    if "transform" in parts:
        transform = transform_trials()
        what = f"a transform of {TRANSFORM_S * 1000:.0f} ms, batches"
        costs = run_trials(transform, rounds)
        reported["transform"] = show(what, costs, TRANSFORMED_BATCHES, next(iter(transform)))
    if "live" in parts:
        with cluster.connect(WORKLOAD) as session:
            debezium = Debezium(python, cluster, session, recording, (MASK,))
            costs = run_trials(live_trials(debezium, cluster.dsn(WORKLOAD)), rounds)
        reported["live"] = show(f"one INSERT of {rows:,} rows from a live server", costs, rows, THEIRS)
    return reported


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", action="append", choices=PARTS, help="only this one; may come again")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where Debezium is kept (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} rows, {QUICK_ROUNDS} round")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines; the tables go to stderr")
    arguments = parser.parse_args()
    rows, rounds = (QUICK_ROWS, QUICK_ROUNDS) if arguments.quick else (arguments.rows, arguments.rounds)
    started = time.monotonic()
    about = {**machine(), "settings": SETTINGS, "debezium": PACKAGE, "rows": rows, "rounds": rounds}
    python = environment(arguments.cache)
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as folder, node() as cluster:
        recording = record(cluster, WORKLOAD, rows, Path(folder), partial(init_states, rounds=rounds))
        reported = measure(cluster, python, recording, arguments.part or PARTS, rounds)
    took_s = round(time.monotonic() - started, 1)
    if arguments.json:
        json.dump({**about, "took_s": took_s, **reported}, sys.stdout, indent=2)
        print()
    else:
        print(f"\nmedian (least-most) of the rounds; load {about['load']}; {took_s} s in all", file=sys.stderr)


if __name__ == "__main__":
    main()
