"""Kill Spark while an outbox is fed and drained, delete its checkpoint now and then, and look at the lake in the end.

python -m tests.support.spark_campaign [--kills 50] [--seed 1] [--groups 2000]
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from tests.support.feeder import World, make_state
from tests.support.lakes import CAPTURE, log_rows, replica_rows
from tests.support.scripted_table import DATABASE
from tidemark.pipeline.failpoints import VARIABLE, Failpoint
from tidemark.pipeline.sinks import Lake, folder_of
from tidemark.pipeline.types import constants_of, shape_of

ROOT = Path(__file__).parents[2]
DEADLINE_S = 180.0
POLL_S = 0.05
PAUSE_S = "0.1"  # between groups: changes come while Spark is killed
VICTIMS = ("driver", "jvm", "python helper")


@dataclass
class Campaign:
    """Where everything is, and what was done so far."""

    root: Path
    seed: int
    groups: int
    kills: Counter[str]

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def lake(self) -> Path:
        return self.root / "lake"

    @property
    def checkpoint(self) -> Path:
        return self.state / "spark"

    def start(self, *options: str, failpoint: str = "") -> subprocess.Popen[bytes]:
        """Start a pipeline as a process of its own."""
        environment = {**os.environ, VARIABLE: failpoint} if failpoint else dict(os.environ)
        with (self.root / "pipeline.log").open("ab") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "tidemark.pipeline", "--master", "local[2]", "--driver-memory", "700m"),
                    *("--state", str(self.state), "--lake", str(self.lake), "--batch-bytes", "60000", *options),
                ],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
            )

    def kill_at(self, failpoint: Failpoint, nth: int) -> None:
        """Start a pipeline that kills itself at a failpoint, if it ever comes there."""
        process = self.start(failpoint=f"{failpoint.value}:{nth}")
        try:
            wait_for(lambda: process.poll() is not None or self.is_drained(), f"failpoint {failpoint.value}")
            self.kills[f"at {failpoint.value}" if process.poll() is not None else "failpoint not met"] += 1
        finally:
            end_all(process)

    def kill(self, victim: str, after_batches: int) -> None:
        """Start a pipeline, kill one of its processes, and see it go on by itself, unless it was the driver."""
        process = self.start()
        try:
            wait_for(lambda: self.batches(process.pid) >= after_batches or self.is_drained(), "some batches")
            if victim == "driver":
                process.kill()
            else:
                wanted = "java" if victim == "jvm" else "python"
                family = psutil.Process(process.pid).children(recursive=True)
                next(member for member in family if member.name().startswith(wanted)).kill()
                at = self.told().get("sequence", 0)
                wait_for(lambda: self.told().get("sequence", 0) > at or self.is_drained(), f"life after {victim}")
                process.terminate()
                assert process.wait(DEADLINE_S) == 0, self.log()
            self.kills[victim] += 1
        finally:
            end_all(process)

    def batches(self, pid: int = 0) -> int:
        """Return how many batches the pipeline (of this pid, if given) brought into the lake."""
        told = self.told()
        return told["batches"] if told and pid in (0, told["pid"]) else 0

    def is_drained(self) -> bool:
        """Tell if the lake holds all that is in the outbox."""
        told = self.told()
        return bool(told and told["sequence"] == told["head"])

    def log(self) -> str:
        """Return the end of what the pipelines said."""
        return (self.root / "pipeline.log").read_text()[-6000:]

    def told(self) -> dict[str, int]:
        try:
            told: dict[str, int] = json.loads((self.state / "pipeline-spark.json").read_text())
        except FileNotFoundError:
            return {}
        return told

    def drain(self) -> None:
        """Bring what is left into the lake, and end well."""
        process = self.start("--once")
        try:
            assert process.wait(DEADLINE_S) == 0, self.log()
        finally:
            end_all(process)

    def check(self) -> dict[str, int]:
        """Compare the lake with the tables that were fed; return the number of changes by table."""
        world = World(self.seed)
        for _ in world.groups(self.groups):
            pass
        found = {}
        for table in world.tables:
            folder = f"{DATABASE}/{folder_of(table.relation)}"
            known = Lake(str(self.lake), CAPTURE, shape_of, constants_of).positions.tables[DATABASE, table.oid]
            assert known.folder == folder
            assert replica_rows(self.lake, folder) == table.expected(), f"replica of {table.name} differs"
            log = log_rows(self.lake, folder)
            changes = {(row["_commit_lsn"], row["_ordinal"]) for row in log}
            assert len(log) == len(changes) == table.changes, f"{len(log)} of {table.changes} in {table.name}'s log"
            found[table.name] = table.changes
        return found


def run(root: Path, *, seed: int, groups: int, failpoints: list[Failpoint], victims: list[str]) -> Campaign:
    """Run a campaign to its end and check the lake."""
    campaign = Campaign(root, seed, groups, Counter())
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
            if chance.random() < 0.4 and campaign.checkpoint.exists():
                shutil.rmtree(campaign.checkpoint)
                campaign.kills["checkpoints deleted"] += 1
    campaign.drain()
    campaign.check()
    return campaign


@contextmanager
def feeding(campaign: Campaign) -> Iterator[None]:
    """Feed the outbox by a process of its own; the end of the block waits for its end."""
    command = [sys.executable, "-m", "tests.support.feeder", str(campaign.state)]
    process = subprocess.Popen([*command, str(campaign.seed), str(campaign.groups), PAUSE_S], cwd=ROOT)
    try:
        yield
        assert process.wait(DEADLINE_S) == 0
    finally:
        end_all(process)


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    """Wait until `is_so`, failing at the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, f"waited {DEADLINE_S} s for {what}"
        time.sleep(POLL_S)


def end_all(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started, also what outlives it."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    process.kill()
    process.wait()
    for member in family:
        if member.is_running():
            member.send_signal(signal.SIGKILL)
    psutil.wait_procs(family, DEADLINE_S)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--groups", type=int, default=2000)
    given = parser.parse_args()
    points = [point for point in Failpoint for _ in range(max(1, given.kills // 2 // len(Failpoint)))]
    with TemporaryDirectory() as folder:
        done = run(
            Path(folder),
            seed=given.seed,
            groups=given.groups,
            failpoints=points,
            victims=[VICTIMS[n % len(VICTIMS)] for n in range(max(0, given.kills - len(points)))],
        )
        sys.stdout.write(f"{dict(done.kills)}: nothing lost, nothing doubled, replicas equal\n{done.check()}\n")
