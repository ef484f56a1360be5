"""Random SIGKILLs between a real server and the lake, under load; no change may be lost, doubled or different.

python -m tests.support.faults.kill_campaign [--seconds 300] [--seed 1] [--major 15]     (scripts/kills)

The sidecar and Spark die independently of each other, at random times: during a start, in the first copy, between two
writes. Of Spark, the driver, the JVM or one of the Python helpers is killed; after a driver's death the checkpoint is
sometimes deleted, the first time always. The campaign ends when its time is over *and* each kind of kill has happened.
"""

import argparse
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.oracles.log_oracle import LogTally, ServerLog, check_log
from tests.support.processes.captures import Sidecar
from tests.support.processes.spark_process import DELETED, DRIVER, PROGRAMS, VICTIMS, SparkProcess, wait_for
from tests.support.servers.postgres import Cluster, database_in, new_cluster
from tests.support.servers.servers import MAJORS
from tests.support.workloads.mixed_load import OLD_ROWS, MixedLoad, create_tables
from tidemark.pipeline.lake.comparison import Compared, compare

DATABASE = "kills"
SIDECAR = "sidecar"
DEATHS = (SIDECAR, *VICTIMS, DELETED)
BATCH_BYTES = 8 << 20  # of Spark: after a kill it must make up for a start of 20 s and more
LOAD_PAUSE_S = 0.12  # between a session's transactions: what one Spark on two cores can process
DDL_EVERY = 30  # transactions of one session: rewrites each table every one or two minutes
CATCH_UP_S = 300.0
SMALL = {  # limits that a short run reaches often
    "TIDEMARK_HISTORY__BASE_EVERY_BYTES": str(8 << 20),
    "TIDEMARK_HISTORY__JOURNAL_FILE_BYTES": str(1 << 16),
    "TIDEMARK_DECODE__MEMORY_BYTES": str(1 << 20),
    "TIDEMARK_DELIVER__GROUP_ROWS_MAX": "200",
}


@dataclass(frozen=True, slots=True)
class KillOutcome:
    """The counts of a campaign: kills and compared changes."""

    kills: Counter[str]
    committed: int
    log: LogTally
    tables: list[Compared]

    def __str__(self) -> str:
        kills = ", ".join(f"{kind} {self.kills[kind]}" for kind in DEATHS)
        return (
            f"kills: {kills}; {self.committed} transactions committed, in the log {self.log.transactions} with "
            f"{self.log.changes} changes and {self.log.copied_rows} copied rows, lost 0, doubled 0; "
            f"{len(self.tables)} replicas identical"
        )


@dataclass
class KillCampaign:
    """A capture and the threads that kill its processes."""

    sidecar: Sidecar
    spark: SparkProcess
    seed: int
    seconds: float
    print_progress: Callable[[str], object]
    kills: Counter[str] = field(default_factory=Counter)
    _began_at_s: float = field(default_factory=time.monotonic)
    _failed: threading.Event = field(default_factory=threading.Event)

    @property
    def over(self) -> bool:
        """Return whether time is over and all kinds of kill have happened, or an error occurred."""
        done = time.monotonic() - self._began_at_s >= self.seconds and all(self.kills[death] for death in DEATHS)
        return done or self._failed.is_set()

    def run(self) -> None:
        """Kill until it is over; raise the error of a killer thread. Both processes run at the end."""
        with ThreadPoolExecutor(2, "killer") as pool:
            killers = [pool.submit(self._until_over, killer) for killer in (self._kill_sidecar, self._kill_spark)]
        for killer in killers:
            killer.result()

    def _until_over(self, killer: Callable[[random.Random], Iterator[None]]) -> None:
        try:
            for _ in killer(random.Random(f"{self.seed} {killer.__name__}")):
                if self.over:
                    return
        except BaseException:
            self._failed.set()
            raise

    def _kill_sidecar(self, dice: random.Random) -> Iterator[None]:
        while True:
            self.sidecar.start(wait=dice.random() < 0.8)
            yield
            time.sleep(dice.uniform(0.05, dice.choice((0.5, 4.0, 12.0))))  # a random moment for the kill
            assert self.sidecar.running, self.sidecar.log_path.read_text()[-4000:]
            self.sidecar.kill()
            self._count(SIDECAR)

    def _kill_spark(self, dice: random.Random) -> Iterator[None]:
        self.spark.start()
        while True:
            yield from self._kill_each_of_spark(dice)

    def _kill_each_of_spark(self, dice: random.Random) -> Iterator[None]:
        for victim in dice.sample(VICTIMS, len(VICTIMS)):
            yield
            self._choose_moment(dice)
            if victim == DRIVER:
                self.spark.kill_driver()
                self._lose_checkpoint(dice)
                self.spark.start()
            else:
                self._kill_in_family(victim, dice)
            self._count(victim)

    def _choose_moment(self, dice: random.Random) -> None:
        """Wait for some batches and a moment more, or for a time that may end while Spark starts."""
        if dice.random() < 0.7:
            for _ in range(dice.choice((1, 1, 3))):
                self._see_progress("a batch")
            time.sleep(dice.uniform(0, 1.5))
        else:
            time.sleep(dice.uniform(0, 12))

    def _kill_in_family(self, victim: str, dice: random.Random) -> None:
        """Kill a child process of the driver, and check that the driver continues."""
        self._wait(lambda: bool(self.spark.family(PROGRAMS[victim])), victim)
        members = self.spark.family(PROGRAMS[victim])
        if not members:  # it ended before the kill
            self._kill_in_family(victim, dice)
            return
        dice.choice(members).kill()
        self._see_progress(f"life after the {victim}'s death")

    def _lose_checkpoint(self, dice: random.Random) -> None:
        if self.spark.checkpoint.exists() and (not self.kills[DELETED] or dice.random() < 0.4):
            self.spark.end_all()  # a JVM outlives its driver for some seconds, and writes there
            shutil.rmtree(self.spark.checkpoint)
            self._count(DELETED)

    def _count(self, death: str) -> None:
        self.kills[death] += 1
        passed_s = time.monotonic() - self._began_at_s
        self.print_progress(f"[{passed_s:5.1f} s] {death} {self.kills[death]}, lake at {self.spark.sequence}")

    def _see_progress(self, what: str) -> None:
        at = self.spark.sequence
        self._wait(lambda: self.spark.sequence > at, what)

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        wait_for(lambda: is_so() or not self.spark.running or self._failed.is_set(), what, self.spark.log)
        assert self.spark.running, self.spark.log()


@contextmanager
def source(cluster: Cluster) -> Iterator[ServerLog]:
    """Create the database, and the oracle of all its changes; both are removed at the end."""
    with database_in(cluster, DATABASE):
        server = ServerLog(cluster, DATABASE)
        try:
            create_tables(cluster, DATABASE, old_rows=OLD_ROWS)
            yield server
        finally:
            server.drop()


@contextmanager
def capture(cluster: Cluster, root: Path) -> Iterator[tuple[Sidecar, SparkProcess]]:
    """Create the state of a capture, not started; everything is stopped at the end."""
    sidecar = Sidecar(cluster, DATABASE, root, copy=True, **SMALL)
    sidecar.init()
    spark = SparkProcess(sidecar.folder.root, root / "lake", root / "spark.log", batch_bytes=BATCH_BYTES)
    try:
        yield sidecar, spark
    finally:
        sidecar.close()
        spark.end_all()


def run(
    cluster: Cluster, root: Path, *, seconds: float, seed: int, print_progress: Callable[[str], object] = str
) -> KillOutcome:
    """Run a campaign in a separate database and check everything."""
    with source(cluster) as server, capture(cluster, root) as (sidecar, spark):
        campaign = KillCampaign(sidecar, spark, seed, seconds, print_progress)
        load = MixedLoad(cluster, DATABASE, seed, pause_s=LOAD_PAUSE_S, ddl_every=DDL_EVERY)
        with load:
            campaign.run()
        print_progress("the load ends; comparing")
        _, tables = compare(cluster.dsn(DATABASE), sidecar.folder, str(spark.lake), CATCH_UP_S)
        spark.stop()
        assert sidecar.stop() == 0, sidecar.log_path.read_text()[-4000:]
        assert not [event for event in sidecar.events() if event["level"] == "error"]
        different = [table for table in tables if not table.identical]
        assert not different, different
        log = check_log(server, sidecar.folder, spark.lake)
    assert log.changes, "nothing was logged"
    return KillOutcome(campaign.kills, load.committed, log, tables)


def print_progress(line: str) -> None:
    """Print the progress of the campaign."""
    sys.stderr.write(f"{line}\n")


def main() -> int:
    """Run one campaign; the folder of a failed one is kept."""
    parser = argparse.ArgumentParser(prog="scripts/kills", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=300, help="of killing (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of load and killers (default: %(default)s)")
    parser.add_argument("--major", type=int, choices=MAJORS, default=15, help="of PostgreSQL (default: %(default)s)")
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="tidemark-kills-"))
    try:
        with new_cluster(given.major) as cluster:
            outcome = run(cluster, root, seconds=given.seconds, seed=given.seed, print_progress=print_progress)
    except BaseException:
        sys.stderr.write(
            f"kills: failed; state, lake and logs are in {root}; again:\n"
            f"  scripts/kills --seconds {given.seconds:g} --seed {given.seed} --major {given.major}\n"
        )
        raise
    shutil.rmtree(root)
    sys.stdout.write(f"{outcome}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
