"""Inject faults of every kind between a real server and the target, under load; then check for lost or wrong changes.

python -m tests.support.faults.chaos.campaign [--seconds 90] [--seed 1] [--major 15] [--no-spark]
    [--widest-batches] [--plant NAME]

First, each failpoint around the effects of the stage table is hit once. Then the seed determines the order of faults
and the number of commits between them; faults overlap unless they need the same resource. At the end all faults are
healed: the capture must return to REALTIME by itself, and the target must equal the source. A failure reports its
seed; the same seed plans the same faults at the same commits.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.support.faults.chaos.faults import POINTS, Steps
from tests.support.faults.chaos.keeper import Report
from tests.support.faults.chaos.lake import OUTBOX_BYTES, LakeTarget
from tests.support.faults.chaos.lost_state import lose_state
from tests.support.faults.chaos.outbox_consumer import OutboxConsumer
from tests.support.faults.chaos.prologue import reach_every_failpoint
from tests.support.faults.chaos.schedule import Planned, planned
from tests.support.faults.chaos.world import POLL_S, ChaosTarget, ChaosWorld, Setting, made
from tests.support.faults.planted import PLANTS
from tests.support.oracles.log_oracle import LogTally
from tests.support.processes.failover import Pair
from tests.support.servers.servers import MAJORS
from tidemark.model.mode import Stage

SPARK_PAUSE_S = 0.3  # what one Spark on two cores can process
ACTIVE_MAX = 4  # faults at once


@dataclass(frozen=True, slots=True)
class CampaignOutcome:
    """The counts of a campaign: faults and compared items."""

    faults: Counter[str]
    points: Counter[str]
    ends: Counter[str]
    committed: int
    markers: int
    switches: int
    log: LogTally

    @property
    def never_reached(self) -> list[str]:
        """The failpoints at which no process died or stopped."""
        return [point.value for point in POINTS if not self.points[point.value]]

    def __str__(self) -> str:
        done = f"{self.committed} transactions committed, {self.switches} switches, {self.markers} markers; "
        lines = (
            "faults: " + ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items())),
            "failpoints: " + ", ".join(f"{name} {count}" for name, count in sorted(self.points.items())),
            "ends: " + ", ".join(f"{how} {count}" for how, count in sorted(self.ends.items())),
            f"{done}received {self.log.transactions} with {self.log.changes} changes, lost 0, doubled 0",
        )
        return "\n".join(lines)


Directed = Callable[[ChaosWorld], None]


@dataclass
class Under:
    """A fault in progress."""

    planned: Planned
    steps: Steps
    due_tick: int


@dataclass
class Agenda:
    """Begins and ends faults as planned."""

    world: ChaosWorld
    plan: Iterator[Planned]
    faults: Counter[str] = field(default_factory=Counter)
    _active: list[Under] = field(default_factory=list)
    _next_tick: int = 0

    def step(self) -> None:
        """Run all actions that are due by the campaign's clock."""
        for one in [one for one in self._active if one.due_tick <= self.world.ticks]:
            self._continue(one)
        if self.world.ticks >= self._next_tick and len(self._active) < ACTIVE_MAX:
            self._begin(next(self.plan))

    def heal(self) -> None:
        """End all faults, also those that wait."""
        for one in self._active:
            one.steps.close()
        self._active.clear()

    def _begin(self, fault: Planned) -> None:
        busy = frozenset().union(*(one.planned.kind.needs for one in self._active))
        reported = f"[{self.world.ticks:6}] {fault.number}: {fault.name}"
        if fault.kind.needs & busy:
            self.world.print_progress(
                f"{reported} (left out: {', '.join(sorted(fault.kind.needs & busy))} under another)"
            )
            return
        self._next_tick = self.world.ticks + fault.gap_ticks
        self.world.print_progress(f"{reported}, in stage {self.world.stage.value}")
        self.faults[fault.name] += 1
        under = Under(fault, fault.kind.run(self.world, fault.dice), 0)
        self._active.append(under)
        self._continue(under)

    def _continue(self, one: Under) -> None:
        ticks = next(one.steps, None)
        if ticks is None:
            self._active.remove(one)
            self.world.print_progress(f"[{self.world.ticks:6}] {one.planned.number}: {one.planned.name} is over")
        else:
            one.due_tick = self.world.ticks + ticks


def run(
    root: Path,
    setting: Setting,
    *,
    seconds: float,
    directed: Directed = reach_every_failpoint,
    spark: bool = False,
    print_progress: Report = str,
) -> CampaignOutcome:
    """Run a campaign, the `directed` faults first, and check everything."""

    def make_target(pair: Pair) -> ChaosTarget:
        return LakeTarget(pair.sidecar) if spark else OutboxConsumer(pair.sidecar.folder, setting.seed)

    with made(root, setting, make_target, print_progress) as world:
        agenda = Agenda(world, planned(setting.seed))
        with world.load:
            for keeper in world.keepers:
                keeper.start()
            directed(world)
            print_progress("what is directed is done; now by chance")
            _by_chance(world, agenda, seconds)
        return _judge(world, agenda)


def _by_chance(world: ChaosWorld, agenda: Agenda, seconds: float) -> None:
    end_s = time.monotonic() + seconds
    try:
        while time.monotonic() < end_s:
            world.maintain()
            agenda.step()
            time.sleep(POLL_S)
    finally:
        agenda.heal()
    world.print_progress(f"[{world.ticks:6}] everything is healed")
    world.wish = "on"
    world.wait_for_stage(Stage.REALTIME)
    lose_state(world)
    world.wait_for_stage(Stage.REALTIME)


def _judge(world: ChaosWorld, agenda: Agenda) -> CampaignOutcome:
    world.drain()
    world.print_progress("the target holds all; comparing")
    world.markers.check()
    tally = world.target.verdict(world.server, world.node.node)
    for keeper in world.keepers:
        assert keeper.process.stop() == 0, keeper.log_end()
    assert tally.changes, "nothing was changed"
    hits = world.sidecar.hit + world.archiver.hit
    return CampaignOutcome(
        agenda.faults,
        Counter({point.value: count for point, count in hits.items()}),
        Counter({f"{k.process.role} {how}": count for k in world.keepers for how, count in k.ends.items()}),
        world.load.committed,
        world.markers.count,
        world.store.view().switches.count,
        tally,
    )


def print_progress(line: str) -> None:
    """Print the progress of the campaign."""
    sys.stderr.write(f"{line}\n")


def main() -> int:
    """Run one campaign; the folder of a failed one is kept."""
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=90, help="of faults by chance (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of load and faults (default: %(default)s)")
    parser.add_argument("--major", type=int, choices=MAJORS, default=15, help="of PostgreSQL (default: %(default)s)")
    parser.add_argument("--plant", choices=sorted(PLANTS), default="", help="run with a bug; the campaign has to fail")
    parser.add_argument("--no-spark", action="store_true", help="take from the outbox without Spark")
    parser.add_argument("--widest-batches", action="store_true", help="collect commits for two seconds before delivery")
    given = parser.parse_args()
    spark = not given.no_spark
    setting = Setting(given.seed, major=given.major, plant=given.plant, batches_widely=given.widest_batches)
    if spark:
        setting = replace(setting, pause_s=SPARK_PAUSE_S, copy=True, outbox_bytes=OUTBOX_BYTES)
    root = Path(tempfile.mkdtemp(prefix="tidemark-chaos-"))
    try:
        outcome = run(root, setting, seconds=given.seconds, spark=spark, print_progress=print_progress)
    except BaseException as error:
        if given.plant and isinstance(error, AssertionError):
            shutil.rmtree(root)
            sys.stdout.write(f"{given.plant} is caught: {str(error).splitlines()[0]}\n")
            return 0
        sys.stderr.write(
            f"chaos: failed; logs are in {root}; again:\n"
            f"  scripts/chaos --seconds {given.seconds:g} --seed {given.seed} --major {given.major}"
            f"{'' if spark else ' --no-spark'}{' --widest-batches' if given.widest_batches else ''}"
            f"{f' --plant {given.plant}' if given.plant else ''}\n"
        )
        raise
    shutil.rmtree(root)
    sys.stdout.write(f"{outcome}\n")
    if never := outcome.never_reached:
        sys.stderr.write(f"chaos: never met: {', '.join(never)}\n")
        return 1
    if given.plant:
        sys.stderr.write(f"chaos: {given.plant} is not caught\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
