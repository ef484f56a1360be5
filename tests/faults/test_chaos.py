"""Faults of every kind over both processes; `scripts/chaos` injects them for longer, and with Spark.

Three bugs that a campaign must find are planted as well: against fencing, the order of writes, and trimming.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults.chaos.campaign import Directed, run
from tests.support.faults.chaos.faults import linger_behind_the_move, switch_off_until_reached
from tests.support.faults.chaos.prologue import reach_every_failpoint
from tests.support.faults.chaos.world import ChaosWorld, Setting
from tests.support.servers.small_disk import needs_mount
from tidemark.runtime.daemon.stage_transition import HandoverPoint

pytestmark = [needs_mount, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("forked")]
SECONDS = 25  # of random faults; the planned failpoints, healing and comparing take longer
SEED = 1
LINGERS = 3


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tidemark-chaos-") as folder:  # the server's user cannot read pytest's
        yield Path(folder)


@pytest.mark.feature("I12")
@pytest.mark.feature("I14")
@pytest.mark.feature("I15")
@pytest.mark.feature("I20")
def test_every_change_is_delivered_once_whatever_fails_and_realtime_resumes(root: Path) -> None:
    done = run(root, Setting(SEED), seconds=SECONDS, directed=reach_every_failpoint)
    assert not done.never_reached, done


def linger_often(world: ChaosWorld) -> None:
    for _ in range(LINGERS):
        linger_behind_the_move(world)


def die_behind_the_stop_marker(world: ChaosWorld) -> None:
    switch_off_until_reached(world, HandoverPoint.AFTER_WRITE_STOP_MARKER)


def nothing_directed(_world: ChaosWorld) -> None:
    return


@pytest.mark.parametrize(
    ("plant", "directed", "reported"),
    [
        ("no-epoch-check", linger_often, "ended with code (9|70)|doubled|is in the group"),
        ("marker-before-state", die_behind_the_stop_marker, "the state knows of no stop"),
        ("trim-at-delivered", nothing_directed, "the target found the outbox broken"),
    ],
)
@pytest.mark.feature("I21")
def test_a_planted_bug_is_found(root: Path, plant: str, directed: Directed, reported: str) -> None:
    with pytest.raises(AssertionError, match=reported):
        run(root, Setting(SEED, plant=plant), seconds=2, directed=directed)
