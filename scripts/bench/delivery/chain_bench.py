"""The stages after the decoder, compared with the decoder or the server in alternating trials of one run.

    outbox   groups written to the outbox and read back, compared with decoding them from WAL
    spark    Spark's source from the outbox to the change log in Delta, and to log and replica, compared with reading
             the outbox; with 7,000,000 rows and more, Spark's batches reach their default size
    rows     typed rows of a table by Spark's format, in a session with Spark's default options, to a sink that
             discards them and to Parquet
    copy     a table's first copy into the outbox, compared with COPY to /dev/null
    tables   the same for tables of ten rows, of which one is a row of the output (`--tables`)

Other rows have five columns. The order changes with each round. A ratio is the time of the first contestant divided by
that of another in the same round: above 1, the other was faster. Only ratios are meaningful on a shared machine.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from scripts.bench.delivery.chain_stages import (
    Copying,
    Outbox,
    TypedRows,
    decoded,
    measured,
    rows_of,
    spark_trial,
)
from scripts.bench.measuring.commands import Cost, init_state
from scripts.bench.measuring.machine import machine
from scripts.bench.measuring.rounds import Trial, ratios, run_trials, spread
from scripts.bench.measuring.user_session import user_session
from scripts.bench.measuring.workloads import SETTINGS, node, record
from tests.support.processes.spark import spark_jvm
from tests.support.servers.outbox_server import Certificate, outbox_server, token_file
from tests.support.servers.postgres import Cluster
from tidemark.io.process.lake_config import Written
from tidemark.pipeline.driver.runner import register_source

STAGES = ("outbox", "spark", "rows", "copy", "tables")
ROWS_OF_SMALL = 10
QUICK_ROWS = 300_000
QUICK_ROUNDS = 1


def outbox_trials(outbox: Outbox, decode: Trial, rows: int) -> dict[str, Trial]:
    """Return the contestants of `outbox`."""

    def write() -> Cost:
        outbox.create_outbox()
        return measured(outbox.write, rows)

    outbox.create_outbox()
    outbox.write()
    return {"decode": decode, "outbox write": write, "outbox read": lambda: measured(outbox.read, rows)}


def copy_stages(
    cluster: Cluster, rows: int, tables: int, stages: Collection[str], folder: Path
) -> Iterator[tuple[str, int, dict[str, Trial]]]:
    """Yield the stages of a first copy, each with the number that its speeds refer to."""
    if "copy" in stages:
        yield "copy", rows, copy_trials(Copying(cluster, "insert", ["narrow"], folder), rows)
    if "tables" in stages:
        small = [f"small_{number}" for number in range(tables)]
        create_small(cluster, small)
        yield "tables", tables, copy_trials(Copying(cluster, "small", small, folder), tables * ROWS_OF_SMALL)


def copy_trials(copying: Copying, rows: int) -> dict[str, Trial]:
    """Return the contestants of `copy` and `tables`."""
    copying.server()  # sets hint bits
    return {
        "COPY to /dev/null": copying.server,
        "psql, to /dev/null": copying.client,
        "first copy": lambda: copying.ours(rows),
    }


def create_small(cluster: Cluster, tables: Sequence[str]) -> None:
    """Create tables of a few rows in a separate database."""
    cluster.sql("CREATE DATABASE small")
    for table in tables:
        cluster.sql(
            f"CREATE TABLE {table} (id int PRIMARY KEY, note text);"
            f"INSERT INTO {table} SELECT n, 'note ' || n FROM generate_series(1, {ROWS_OF_SMALL}) n",
            "small",
        )


def row_trials(spark: SparkSession, feeding: Outbox, rows: int, server: Mapping[str, str]) -> dict[str, Trial]:
    """Return the contestants of `rows`; each runs once before it is measured, because Spark's first jobs are slow."""
    register_source(spark)
    reading = partial(TypedRows, spark, state=str(feeding.state))
    whole = reading().frame.columns
    few = [name for name in whole if not name.startswith("_")] + ["_op", "_lsn"]
    named = {
        "columns, _op, _lsn": reading(few),
        **({"columns, _op, _lsn, TLS": TypedRows(spark, few, **server)} if server else {}),
        "all columns": reading(),
        "before_after": reading(columns="before_after"),
    }
    trials: dict[str, Trial] = {"outbox read": lambda: measured(feeding.read, rows)}
    for name, rows_of_form in named.items():
        trials[f"{name}, noop"] = partial(measured, rows_of_form.discard, rows)
    trials["columns, _op, _lsn, Parquet"] = partial(measured, reading(few).to_parquet, rows)
    for trial in trials.values():
        trial()
    return trials


@contextmanager
def serving(state: Path, *, wanted: bool) -> Iterator[dict[str, str]]:
    """Serve an outbox with TLS, as `cdcctl run server` does, if that is wanted; yield the options of a query."""
    if not wanted:
        yield {}
        return
    certificate = Certificate.of_years(state.parent / "tls", 2020, 2050)
    with outbox_server(state, certificate) as (_, url):
        yield {"server": url, "tokenFile": str(token_file(state.parent)), "tlsRoots": str(certificate.path)}


def spark_stages(
    feeding: Outbox, rows: int, stages: Collection[str], settings: Mapping[str, str], *, by_server: bool
) -> Iterator[tuple[str, dict[str, Trial]]]:
    """Yield the chosen ones of the stages `spark` and `rows`, which read the same outbox, with their contestants."""
    feeding.create_outbox()
    feeding.write()
    if "rows" in stages:
        with user_session(feeding.state.parent, settings) as spark, serving(feeding.state, wanted=by_server) as server:
            yield "rows", row_trials(spark, feeding, rows, server)
    if "spark" in stages:
        with spark_jvm(feeding.state.parent / "spark") as jvm:
            spark = jvm.session()
            yield (
                "spark",
                {
                    "outbox read": lambda: measured(feeding.read, rows),
                    "change log": lambda: spark_trial(spark, feeding.state, rows, Written.LOG),
                    "change log and replica": lambda: spark_trial(spark, feeding.state, rows, Written.BOTH),
                },
            )


def result(stage: str, rows: int, costs: Mapping[str, Sequence[Cost]]) -> dict[str, object]:
    """Return the results of a stage; ratios are relative to the first contestant."""
    base = next(iter(costs.values()))
    return {
        "stage": stage,
        "rows": rows,
        "trials": {
            name: {
                "wall_s": [round(cost.wall_s, 4) for cost in found],
                "cpu_s": [round(cost.cpu_s, 4) for cost in found],
                "rows_per_s": round(rows / spread([cost.wall_s for cost in found]).median),
                "rows_per_cpu_s": round(rows / spread([cost.cpu_s for cost in found]).median),
                "wall_ratio": round(spread(ratios(base, found, "wall_s")).median, 3),
                "cpu_ratio": round(spread(ratios(base, found, "cpu_s")).median, 3),
            }
            for name, found in costs.items()
        },
    }


def show(stage: str, rows: int, costs: Mapping[str, Sequence[Cost]]) -> None:
    """Print a table immediately, because the next stage takes long."""
    base = next(iter(costs.values()))
    print(f"\n{stage}: {rows:,} rows, {len(base)} rounds; ratios to {next(iter(costs))}")
    line = "{:26}{:>20}{:>20}{:>12}{:>12}{:>20}{:>20}"
    print(line.format("", "wall s", "CPU s", "rows/s", "rows/CPU s", "wall ratio", "CPU ratio"))
    for name, found in costs.items():
        wall, cpu = (spread([getattr(cost, what) for cost in found]) for what in ("wall_s", "cpu_s"))
        speeds = (f"{rows / wall.median:,.0f}", f"{rows / max(cpu.median, 1e-3):,.0f}")
        against = (f"{spread(ratios(base, found, what)):.2f}" for what in ("wall_s", "cpu_s"))
        print(line.format(name, f"{wall:.2f}", f"{cpu:.2f}", *speeds, *against), flush=True)


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stage", action="append", choices=STAGES, help="only this one; may come again")
    parser.add_argument("--tables", type=int, default=400, help="`tables`: how many")
    parser.add_argument("--server", action="store_true", help="`rows`: also from an outbox server, by Flight with TLS")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="`rows`: a setting of Spark")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} rows, {QUICK_ROUNDS} round")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    arguments = parser.parse_args()
    rows, rounds = (QUICK_ROWS, QUICK_ROUNDS) if arguments.quick else (arguments.rows, arguments.rounds)
    started = time.monotonic()
    spark = dict(setting.split("=", 1) for setting in arguments.conf)
    about = {**machine(), "settings": SETTINGS, **({"Spark": spark} if spark else {})}
    reported: list[dict[str, object]] = []

    def report(stage: str, costs: Mapping[str, Sequence[Cost]], count: int = rows) -> None:
        reported.append(result(stage, count, costs))
        if not arguments.json:
            show(stage, count, costs)

    if not arguments.json:
        print(", ".join(f"{name} {value}" for name, value in about.items() if name != "settings"))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tm-bench-")))
        cluster = stack.enter_context(node())
        recording = record(cluster, "insert", rows, folder, init_state)
        stages = arguments.stage or STAGES
        for stage, count, trials in copy_stages(cluster, rows, arguments.tables, stages, folder):
            report(stage, run_trials(trials, rounds), count)
        if {"outbox", "spark", "rows"} & set(stages):
            groups = decoded(recording)
        if "outbox" in stages:
            outbox = Outbox(folder, groups)
            decode = lambda: measured(lambda: rows_of(decoded(recording)), rows)  # noqa: E731
            report("outbox", run_trials(outbox_trials(outbox, decode, rows), rounds))
        if {"spark", "rows"} & set(stages):
            feeding = Outbox(folder / "feeding", groups)
            for stage, trials in spark_stages(feeding, rows, stages, spark, by_server=arguments.server):
                report(stage, run_trials(trials, rounds))
    took_s = round(time.monotonic() - started, 1)
    if arguments.json:
        json.dump({**about, "took_s": took_s, "stages": reported}, sys.stdout, indent=2)
        print()
    else:
        print(f"\nmedian (least-most) of the rounds; {took_s} s in all")


if __name__ == "__main__":
    main()
