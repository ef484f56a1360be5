"""A wall clock that jumps: it appears in output, but no decision depends on it."""

from pathlib import Path

from tests.support.processes.captures import change_log, replayed
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.processes.failover import Pair, paired
from tests.support.servers.archiving import ArchivingServer
from tidemark.model.mode import Stage

# Both daemons, with a wall clock that is off by a day or a year, differently at each reading.
PROGRAM = """
import itertools, runpy, sys, time

DAY_S = 86_400
real_ns, real_s = time.time_ns, time.time
steps = itertools.cycle((0, DAY_S, -DAY_S, 365 * DAY_S, -365 * DAY_S))
time.time_ns = lambda: real_ns() + next(steps) * 10**9
time.time = lambda: real_s() + next(steps)
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""


def jumping(pair: Pair) -> None:
    """Restart both on such a clock."""
    for process in (pair.sidecar, pair.archiver):
        process.stop()
        process.program = ("-c", PROGRAM.format(module=process.module))
    pair.start()


def test_no_delivery_or_switch_depends_on_the_wall_clock(node: ArchivingServer, tmp_path: Path) -> None:
    with paired(node, tmp_path) as pair:
        jumping(pair)
        pair.insert(1, 2)
        pair.catch_up()
        state = ("--state", pair.sidecar.folder.root)
        succeeded(cdcctl("realtime", "off", *state, **pair.sidecar.options))
        pair.insert(3, 4)
        assert set(replayed(change_log(pair.catch_up(), "account"))) == {1, 2, 3, 4}
        succeeded(cdcctl("realtime", "on", *state, **pair.sidecar.options))
        pair.insert(5)
        pair.catch_up()
        pair.sidecar.kill()
        pair.wait_for_stage(Stage.ARCHIVE)
        pair.insert(6)
        pair.catch_up()
        pair.sidecar.start()
        pair.wait_for_stage(Stage.REALTIME)
        assert set(replayed(change_log(pair.catch_up(), "account"))) == set(range(1, 7))
