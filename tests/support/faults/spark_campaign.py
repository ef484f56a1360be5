"""Kill Spark while an outbox is fed and drained, sometimes delete its checkpoint, and check the lake at the end.

python -m tests.support.faults.spark_campaign [--kills 50] [--seed 1] [--groups 2000] [--format iceberg]
"""

import argparse
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.lakes.iceberg import duckdb_rows, iceberg_lake, iceberg_rows
from tests.support.lakes.lakes import IDENTITY, folder_of, log_rows, replica_rows
from tests.support.lakes.scripted_table import DATABASE
from tests.support.lakes.stored_lake import StoredLake
from tests.support.processes.spark import SparkJvm
from tests.support.processes.spark_process import (
    DEADLINE_S,
    DELETED,
    DRIVER,
    PROGRAMS,
    ROOT,
    VICTIMS,
    SparkProcess,
    wait_for,
)
from tests.support.workloads.feeder import RandomTables, make_state
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.landing.settings import LakeFormat
from tidemark.pipeline.sinks.lake import Lake

BATCH_BYTES = 60_000
ICEBERG_FAILPOINTS = [
    Failpoint.BATCH_RECEIVED,
    Failpoint.LOG_APPENDED,
    Failpoint.TABLES_DONE,
    Failpoint.POSITIONS_WRITTEN,
    Failpoint.CONFIRMED,
]
PAUSE_S = "0.1"  # between groups: changes arrive while Spark is killed


@dataclass
class SparkCampaign:
    """The folders of a campaign, and its counts."""

    root: Path
    seed: int
    groups: int
    lake_format: LakeFormat = LakeFormat.DELTA
    store: StoredLake | None = None  # else the lake is in a folder
    jvm: SparkJvm | None = None  # lent to the pipelines, of which at most the driver is killed then
    kills: Counter[str] = field(default_factory=Counter)
    spark: SparkProcess = field(init=False)

    def __post_init__(self) -> None:
        self.spark = SparkProcess(self.state, self.lake, self.root / "pipeline.log", batch_bytes=BATCH_BYTES)
        if self.store is not None:
            self.spark.environment, self.spark.store_root = self.store.server.environment(), self.store.root
        self.spark.jvm = self.jvm
        self.spark.options = ("--format", self.lake_format.value)

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def lake(self) -> Path:
        return self.root / "lake"

    def kill_at(self, failpoint: Failpoint, nth: int) -> None:
        """Start a pipeline that kills itself at a failpoint, if it reaches it."""
        spark = self.spark
        spark.start(failpoint=f"{failpoint.value}:{nth}")
        try:
            wait_for(lambda: not spark.running or spark.is_drained(), f"failpoint {failpoint.value}")
            self.kills["failpoint not met" if spark.running else f"at {failpoint.value}"] += 1
        finally:
            spark.end_all()

    def kill(self, victim: str, after_batches: int) -> None:
        """Start a pipeline, kill one of its processes, and check that it continues, unless the driver was killed."""
        spark = self.spark
        spark.start()
        try:
            wait_for(lambda: spark.batches() >= after_batches or spark.is_drained(), "some batches")
            if victim == DRIVER:
                spark.kill_driver()
            else:
                spark.family(PROGRAMS[victim])[0].kill()
                at = spark.sequence
                wait_for(lambda: spark.sequence > at or spark.is_drained(), f"life after {victim}")
                spark.stop()
            self.kills[victim] += 1
        finally:
            spark.end_all()

    def drain(self) -> None:
        """Write the remaining values into the lake, and end without an error."""
        self.spark.start("--once")
        try:
            self.spark.wait()
        finally:
            self.spark.end_all()

    def check(self) -> dict[str, int]:
        """Compare the lake with the source tables; return the number of changes by table."""
        world = RandomTables(self.seed)
        for _ in world.groups(self.groups):
            pass
        found = {}
        is_delta = self.lake_format is LakeFormat.DELTA
        lake = str(self.lake) if self.store is None else self.store.root
        positions = (Lake(lake, IDENTITY, shape_of, constants_of) if is_delta else iceberg_lake(self.lake)).positions
        for table in world.tables:
            folder = folder_of(table.relation)
            assert positions.tables[DATABASE, table.oid].folder == folder
            if is_delta:
                assert self._replica(folder) == table.expected(), f"replica of {table.name} differs"
                log = log_rows(self.lake, folder) if self.store is None else self._stored(f"{folder}/log")
            else:
                log = iceberg_rows(self.lake, folder)
                assert duckdb_rows(self.lake, folder) == log, f"DuckDB reads another log of {table.name}"
            changes = {(row["_commit_lsn"], row["_ordinal"]) for row in log}
            assert len(log) == len(changes) == table.changes, f"{len(log)} of {table.changes} in {table.name}'s log"
            found[table.name] = table.changes
        return found

    def _replica(self, folder: str) -> list[dict[str, object]]:
        if self.store is None:
            return replica_rows(self.lake, folder)
        return sorted(self._stored(f"{folder}/replica"), key=repr)

    def _stored(self, folder: str) -> list[dict[str, object]]:
        assert self.store is not None
        found: list[dict[str, object]] = self.store.rows(folder).to_pylist()
        return found


def run(
    root: Path,
    *,
    seed: int,
    groups: int,
    failpoints: list[Failpoint],
    victims: list[str],
    lake_format: LakeFormat = LakeFormat.DELTA,
    jvm: SparkJvm | None = None,
) -> SparkCampaign:
    """Run a campaign to its end and check the lake."""
    campaign = SparkCampaign(root, seed, groups, lake_format, jvm=jvm)
    chance = random.Random(seed)
    make_state(campaign.state)
    with feeding(campaign):
        plan: list[Failpoint | str] = [*failpoints, *victims]
        chance.shuffle(plan)
        for death in plan:
            if isinstance(death, Failpoint):
                campaign.kill_at(death, chance.randint(1, 3))
            else:
                campaign.kill(death, chance.randint(1, 4))
            # The first checkpoint is always deleted, later ones at random.
            if campaign.spark.checkpoint.exists() and (not campaign.kills[DELETED] or chance.random() < 0.4):
                shutil.rmtree(campaign.spark.checkpoint)
                campaign.kills[DELETED] += 1
    campaign.drain()
    campaign.check()
    return campaign


@contextmanager
def feeding(campaign: SparkCampaign) -> Iterator[None]:
    """Feed the outbox from a separate process; the end of the block waits for its end."""
    command = [sys.executable, "-m", "tests.support.workloads.feeder", str(campaign.state)]
    process = subprocess.Popen([*command, str(campaign.seed), str(campaign.groups), PAUSE_S], cwd=ROOT)
    try:
        yield
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--groups", type=int, default=2000)
    parser.add_argument("--format", type=LakeFormat, choices=list(LakeFormat), default=LakeFormat.DELTA)
    given = parser.parse_args()
    of_format = ICEBERG_FAILPOINTS if given.format is LakeFormat.ICEBERG else list(Failpoint)
    points = [point for point in of_format for _ in range(max(1, given.kills // 2 // len(of_format)))]
    with TemporaryDirectory() as folder:
        done = run(
            Path(folder),
            seed=given.seed,
            groups=given.groups,
            failpoints=points,
            victims=[VICTIMS[n % len(VICTIMS)] for n in range(max(0, given.kills - len(points)))],
            lake_format=given.format,
        )
        sys.stdout.write(f"{dict(done.kills)}: nothing lost, nothing doubled, tables equal\n{done.check()}\n")
