"""Run the demonstration; exit non-zero if any replica differs from its table."""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from rich.console import Console
from rich.table import Table

from scripts.demo_run import server as embedded
from scripts.demo_run import workload as shop
from scripts.demo_run.processes import CTL, Process, run

SECONDS_DEFAULT = 70  # of workload
FIRST_BATCH_S_MAX = 90  # for Spark to start
SETTLE_S_MAX = 90  # for the lake to catch up after the workload
TELL_EVERY_S = 5.0
COMPARE = "tidemark.pipeline.compare"
ROLE = "cdc"
GRANTS = (
    f"CREATE ROLE {ROLE} LOGIN REPLICATION",
    f"GRANT USAGE ON SCHEMA app TO {ROLE}",
    f"GRANT SELECT ON ALL TABLES IN SCHEMA app TO {ROLE}",  # for the first copy
)


@dataclass
class Demonstration:
    """What runs, and where."""

    folder: Path
    console: Console
    server: embedded.Server
    sidecar: Process = field(init=False)
    spark: Process = field(init=False)

    def __post_init__(self) -> None:
        state = ("--state", str(self.state))
        self.sidecar = Process("sidecar", ("run", "sidecar", *state), self.folder / "sidecar.log")
        run_spark = ("spark", "run", *state, "--lake", str(self.lake), "--master", "local[2]")
        self.spark = Process("spark", run_spark, self.folder / "spark.log")

    @property
    def state(self) -> Path:
        """The state folder."""
        return self.folder / "state"

    @property
    def lake(self) -> Path:
        """Where the tables stand."""
        return self.folder / "lake"

    def say(self, text: str) -> None:
        """Print one line of the story."""
        self.console.print(text, highlight=False)

    def status(self) -> str:
        """Return where everything is, in a line."""
        told = json.loads(run(CTL, "status", "--state", str(self.state), "--json"))
        delivered = told["delivered"] or {}
        lake = self.landed()
        lag = f"{lake.get('rows', 0)} events, lag p50 {_seconds(lake.get('lag_p50_s'))}"
        return (
            f"mode {told['mode']}, delivered {delivered.get('position', '-')}, "
            f"outbox at {told['outbox']['head']}, lake at {lake.get('sequence', 0)} ({lag})"
        )

    def landed(self) -> dict[str, int | float | str | None]:
        """Return what the pipeline says of itself."""
        try:
            told: dict[str, int | float | str | None] = json.loads((self.state / "pipeline-spark.json").read_text())
        except FileNotFoundError:
            return {}
        return told


def _seconds(value: float | str | None) -> str:
    return f"{value:.2f} s" if isinstance(value, float) else "-"


@contextmanager
def started(folder: Path, console: Console, *, keep: bool) -> Iterator[Demonstration]:
    """Start the server; at the end stop and remove everything, or leave it and say where it is."""
    folder.chmod(0o755)  # the server's user has to reach its own folders in it
    demonstration = Demonstration(folder, console, embedded.start(folder))
    kept = False
    try:
        yield demonstration
        kept = keep
    finally:
        if kept:
            _say_where(demonstration)
        else:
            demonstration.spark.stop()
            demonstration.sidecar.stop()
            demonstration.server.stop()
            shutil.rmtree(folder, ignore_errors=True)


def _say_where(demonstration: Demonstration) -> None:
    demonstration.say(
        f"everything runs on:\n  psql '{demonstration.server.dsn()}'\n"
        f"  .venv/bin/cdcctl status --state {demonstration.state}\n  lake: {demonstration.lake}\n"
        f"  logs: {demonstration.sidecar.log} (pid {demonstration.sidecar.pid}), "
        f"{demonstration.spark.log} (pid {demonstration.spark.pid})\n"
        f"  stop it: kill {demonstration.sidecar.pid} {demonstration.spark.pid}, then pg_ctl stop"
    )


def _prepare(demonstration: Demonstration) -> None:
    dsn = demonstration.server.dsn()
    rows = shop.create(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in GRANTS:
            connection.execute(statement.encode())
    demonstration.say(f"PostgreSQL {embedded.MAJOR} runs, with {rows} rows in {len(shop.TABLES)} tables of schema app")
    run(CTL, "init", "--dsn", demonstration.server.dsn(ROLE), "--state", str(demonstration.state), "--table", "app.*")
    demonstration.say("cdcctl init: catalogs seeded by plain SELECTs, no slot, nothing installed in the server")


def _play(demonstration: Demonstration, work: shop.Workload, seconds: float) -> None:
    """Let the workload run; change the schema and kill processes meanwhile."""
    scenes = [
        (0.25, shop.ADD_COLUMN, lambda: _alter(demonstration, shop.ADD_COLUMN)),
        (0.40, "SIGKILL to the sidecar", demonstration.sidecar.kill),
        (0.44, "sidecar started again", demonstration.sidecar.start),
        (0.55, shop.CHANGE_TYPE, lambda: _alter(demonstration, shop.CHANGE_TYPE)),
        (0.70, "SIGKILL to Spark, driver and JVM", demonstration.spark.kill),
        (0.74, "Spark started again", demonstration.spark.start),
    ]
    begun = time.monotonic()
    told = begun
    while (passed := time.monotonic() - begun) < seconds:
        while scenes and passed >= scenes[0][0] * seconds:
            _, title, act = scenes.pop(0)
            demonstration.say(f"[{passed:5.1f} s] >> {title}")
            act()
        if time.monotonic() - told >= TELL_EVERY_S:
            told = time.monotonic()
            demonstration.say(f"[{passed:5.1f} s] {work.rate():.0f} transactions/s; {demonstration.status()}")
        time.sleep(0.1)


def _wait_for_lake(demonstration: Demonstration) -> None:
    """Wait until Spark has brought its first batch: before that there is nothing to kill."""
    deadline = time.monotonic() + FIRST_BATCH_S_MAX
    while not demonstration.landed():
        for process in (demonstration.sidecar, demonstration.spark):
            process.check()
        if time.monotonic() > deadline:
            raise SystemExit(f"Spark has brought nothing in {FIRST_BATCH_S_MAX} s; see {demonstration.spark.log}")
        time.sleep(0.5)
    demonstration.say("Spark has brought the first batch to the lake")


def _alter(demonstration: Demonstration, statement: str) -> None:
    with psycopg.connect(demonstration.server.dsn(), autocommit=True) as connection:
        connection.execute(statement.encode())


def _report(demonstration: Demonstration, work: shop.Workload) -> bool:
    """Compare every table with its replica; print the result; return if all are identical."""
    arguments = [
        "--dsn",
        demonstration.server.dsn(),
        "--state",
        str(demonstration.state),
        "--lake",
        str(demonstration.lake),
    ]
    compared = json.loads(run(COMPARE, *arguments, "--wait-s", str(SETTLE_S_MAX), "--json", fine=(0, 1)))
    table = Table(title=f"source and lake at {compared['lsn']}")
    for heading in ("table", "rows", "replica rows", "content"):
        table.add_column(heading, justify="left" if heading in {"table", "content"} else "right")
    for one in compared["tables"]:
        verdict = "identical" if one["identical"] else "DIFFERENT"
        table.add_row(one["table"], str(one["source_rows"]), str(one["replica_rows"]), verdict)
    demonstration.console.print(table)
    lake = demonstration.landed()
    demonstration.say(
        f"{work.transactions} transactions ({work.rolled_back} rolled back), {work.rate():.0f}/s; "
        f"{lake.get('rows')} events in the lake since Spark's last start; commit to visible in the lake: "
        f"p50 {_seconds(lake.get('lag_p50_s'))}, p99 {_seconds(lake.get('lag_p99_s'))}"
    )
    return bool(compared["tables"]) and all(one["identical"] for one in compared["tables"])


def main() -> int:
    """Run it all."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave everything running, and say where it is")
    parser.add_argument("--seconds", type=float, default=SECONDS_DEFAULT, help="of workload (default: %(default)s)")
    given = parser.parse_args()
    begun = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="tidemark-demo-"))
    with started(folder, Console(soft_wrap=True), keep=given.keep) as demonstration:
        _prepare(demonstration)
        work = shop.Workload(demonstration.server.dsn())
        work.start()
        demonstration.sidecar.start()
        demonstration.spark.start()
        _wait_for_lake(demonstration)
        _play(demonstration, work, given.seconds)
        work.stop()
        demonstration.say("the workload has stopped; waiting for the lake")
        for process in (demonstration.sidecar, demonstration.spark):
            process.check()
        identical = _report(demonstration, work)
        demonstration.say(f"{'identical' if identical else 'DIFFERENT'}, after {time.monotonic() - begun:.0f} s")
    return 0 if identical else 1


if __name__ == "__main__":
    sys.exit(main())
