"""Run the demonstration; exit non-zero if any replica differs from its table."""

import argparse
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from rich.console import Console
from rich.table import Table

from scripts.demo_run import server as embedded
from scripts.demo_run import workload as shop
from scripts.demo_run.lag import LagWatch, quantile
from scripts.demo_run.processes import CTL, Process, run
from tidemark.model.lsn import Lsn, parse_lsn

SECONDS_DEFAULT = 70  # of workload
FIRST_BATCH_S_MAX = 240  # for Spark to start
SETTLE_S_MAX = 90  # for the lake to catch up after the workload
TELL_EVERY_S = 5.0
LOOK_EVERY_S = 0.1
COMPARE = "tidemark.pipeline.compare"
ROLE = "cdc"
METRICS_PORT = "TIDEMARK_METRICS__PORT"
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
    lag: LagWatch = field(init=False)

    def __post_init__(self) -> None:
        self.lag = LagWatch(self.server.dsn(), self.landed)
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
        return (
            f"mode {told['mode']}, delivered {delivered.get('position', '-')}, outbox at {told['outbox']['head']}, "
            f"lake {_behind(told['readers'])} values behind, lag {self.lag.recent()}"
        )

    def is_drained(self) -> bool:
        """Tell if the lake holds all that is in the outbox."""
        return not _behind(json.loads(run(CTL, "status", "--state", str(self.state), "--json"))["readers"])

    def landed(self) -> Lsn | None:
        """Return up to which LSN the lake holds everything, by the pipeline's own word; None before its first batch."""
        try:
            told: dict[str, str] = json.loads((self.state / "pipeline-spark.json").read_text())
        except FileNotFoundError:
            return None
        return parse_lsn(told["lsn"])


def _behind(readers: Mapping[str, Mapping[str, int]]) -> int:
    return max((reader["behind"] for reader in readers.values()), default=0)


@contextmanager
def started(folder: Path, console: Console, *, keep: bool) -> Iterator[Demonstration]:
    """Start the server; at the end stop and remove everything, or leave it and say where it is.

    Where something failed, its folder stays: the message that tells of it names a log in there.
    """
    folder.chmod(0o755)  # the server's user has to reach its own folders in it
    demonstration = Demonstration(folder, console, embedded.start(folder))
    kept = failed = False
    try:
        yield demonstration
        kept = keep
    except (Exception, SystemExit):
        failed = True
        raise
    finally:
        demonstration.lag.close()
        if kept:
            _say_where(demonstration)
        else:
            demonstration.spark.stop()
            demonstration.sidecar.stop()
            demonstration.server.stop()
            if not failed:
                shutil.rmtree(folder, ignore_errors=True)


def _say_where(demonstration: Demonstration) -> None:
    demonstration.say(
        f"everything runs on:\n  psql '{demonstration.server.dsn()}'\n"
        f"  .venv/bin/cdcctl status --state {demonstration.state}\n  lake: {demonstration.lake}\n"
        f"  metrics: http://127.0.0.1:{os.environ[METRICS_PORT]}/metrics\n"
        f"  logs: {demonstration.sidecar.log} (pid {demonstration.sidecar.pid}), "
        f"{demonstration.spark.log} (pid {demonstration.spark.pid})\n"
        f"  stop it: kill {demonstration.sidecar.pid} {demonstration.spark.pid}, then pg_ctl stop"
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _prepare(demonstration: Demonstration) -> None:
    dsn = demonstration.server.dsn()
    os.environ.setdefault(METRICS_PORT, str(_free_port()))
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
    while (passed := time.monotonic() - begun) < seconds or scenes:  # all of them, on however busy a machine
        if scenes and passed >= scenes[0][0] * seconds:
            _, title, act = scenes.pop(0)
            demonstration.say(f"[{passed:5.1f} s] >> {title}")
            act()
        if time.monotonic() - told >= TELL_EVERY_S:
            told = time.monotonic()
            demonstration.say(f"[{passed:5.1f} s] {work.rate():.0f} transactions/s; {demonstration.status()}")
        demonstration.lag.look()
        time.sleep(LOOK_EVERY_S)


def _wait_for_lake(demonstration: Demonstration) -> None:
    """Wait until Spark has brought its first batch: before that there is nothing to kill."""
    deadline = time.monotonic() + FIRST_BATCH_S_MAX
    while demonstration.landed() is None:
        for process in (demonstration.sidecar, demonstration.spark):
            process.check()
        if time.monotonic() > deadline:
            raise SystemExit(f"Spark has brought nothing in {FIRST_BATCH_S_MAX} s; see {demonstration.spark.log}")
        time.sleep(0.5)
    demonstration.say("Spark has brought the first batch to the lake")


def _catch_up(demonstration: Demonstration) -> None:
    """Wait until the lake holds all that is in the outbox."""
    deadline = time.monotonic() + SETTLE_S_MAX
    while not demonstration.is_drained() and time.monotonic() < deadline:
        for process in (demonstration.sidecar, demonstration.spark):
            process.check()
        demonstration.lag.settle()
    demonstration.lag.settle(everything=True)


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
    for heading in ("table", "rows", "replica rows", "events", "content"):
        table.add_column(heading, justify="left" if heading in {"table", "content"} else "right")
    for one in compared["tables"]:
        verdict = "identical" if one["identical"] else "DIFFERENT"
        counts = (one["source_rows"], one["replica_rows"], one["events"])
        table.add_row(one["table"], *map(str, counts), verdict)
    demonstration.console.print(table)
    lags = demonstration.lag.lags_s
    demonstration.say(
        f"{work.transactions} transactions ({work.rolled_back} rolled back), {work.rate():.0f}/s; commit to visible in "
        f"the lake, kills and restarts included: p50 {quantile(lags, 0.5):.1f} s, p99 {quantile(lags, 0.99):.1f} s"
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
        _catch_up(demonstration)
        identical = _report(demonstration, work)
        demonstration.say(f"{'identical' if identical else 'DIFFERENT'}, after {time.monotonic() - begun:.0f} s")
    return 0 if identical else 1


if __name__ == "__main__":
    sys.exit(main())
