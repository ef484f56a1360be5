"""An idle sidecar: how often its threads wake."""

import time
from pathlib import Path

from tests.conftest import NewCluster
from tests.support.processes.captures import running
from tests.support.processes.waiting import let_pass

WAKE_UPS_PER_S_MAX = 7.5  # about 5 were measured, and 9 with five steps of the daemon a second
SETTLED_S, MEASURED_S = 4.0, 4.0  # the application thread waits longer and longer while nothing happens
MEASURED_TIMES = 10  # at most: on a loaded machine the start takes longer


def wake_ups(pid: int) -> int:
    """Return how often the threads of a process waited so far."""
    statuses = [task.joinpath("status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0]) for text in statuses)


def test_an_idle_sidecar_wakes_a_few_times_a_second(new_cluster: NewCluster, tmp_path: Path) -> None:
    with running(new_cluster(15), "postgres", tmp_path) as sidecar:
        process = sidecar.process
        assert process is not None
        let_pass(SETTLED_S, "what follows a start must be over")
        rates: list[float] = []
        while len(rates) < MEASURED_TIMES and (not rates or rates[-1] > WAKE_UPS_PER_S_MAX):
            began_s, before = time.monotonic(), wake_ups(process.pid)
            let_pass(MEASURED_S, "wake-ups are counted for this time")
            rates.append((wake_ups(process.pid) - before) / (time.monotonic() - began_s))
        assert rates[-1] <= WAKE_UPS_PER_S_MAX, rates
