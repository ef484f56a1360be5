"""Processes that are stopped for a while, or inside a write transaction: the archiver, `cdcctl`, Spark's runner."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes.captures import change_log, replayed
from tests.support.processes.cdcctl import cdcctl, environment, running, succeeded
from tests.support.processes.ending import ended
from tests.support.processes.failover import HANGS_SOON, Pair, paired
from tests.support.servers.archiving import ArchivingServer
from tidemark.io.host.failpoints import VARIABLE
from tidemark.model.change import GroupItem
from tidemark.model.mode import Stage

STUCK_INSIDE = {VARIABLE: "write-inside:1:stop"}
KILLED = "killed a process that was stuck inside a write transaction"


def ids(items: list[GroupItem]) -> list[object]:
    return list(replayed(change_log(items, "account")))


@pytest.mark.feature("I19")
def test_a_stopped_archiver_continues_at_the_exact_row_active_and_passive(pair: Pair) -> None:
    assert pair.archiver.process is not None
    pair.archiver.process.send_signal(signal.SIGSTOP)
    pair.insert(1)
    assert ids(pair.catch_up()) == [1], "realtime goes on"
    pair.archiver.process.send_signal(signal.SIGCONT)
    pair.switch_off()
    pair.wait_for(lambda: pair.stage is Stage.HELD, "off")
    pair.insert(2)
    pair.catch_up()
    pair.archiver.process.send_signal(signal.SIGSTOP)
    pair.node.sql("INSERT INTO account SELECT n, 'x' FROM generate_series(10, 20009) n")
    pair.archiving.switch(2)
    pair.archiving.wait_until_archived()
    assert ids(pair.delivered()) == [1, 2], "nobody delivers"
    pair.archiver.process.send_signal(signal.SIGCONT)
    assert len(ids(pair.catch_up())) == 20002
    pair.switch_on()
    pair.wait_for_stage(Stage.REALTIME)
    pair.insert(3)
    assert len(ids(pair.catch_up())) == 20003


@pytest.mark.feature("I20")
def test_cdcctl_that_stops_inside_its_write_transaction_is_killed_and_the_switch_can_be_repeated(
    node: ArchivingServer, tmp_path: Path
) -> None:
    with paired(node, tmp_path, options={**HANGS_SOON, "TIDEMARK_WATCHDOG__RESTART_S": "600"}) as pair:
        pair.insert(1)
        pair.catch_up()
        pair.sidecar.kill()
        off = ("realtime", "off", "--state", pair.sidecar.folder.root)
        with running(tmp_path, *off, **pair.sidecar.options, **STUCK_INSIDE) as stuck:
            reported = pair.archiver.wait_for_event(KILLED)
            assert reported["pid"] == stuck.process.pid
            assert stuck.process.wait(timeout=120) == -signal.SIGKILL
        assert pair.stage is Stage.REALTIME
        succeeded(cdcctl(*off, **pair.sidecar.options))
        pair.insert(2)
        assert ids(pair.catch_up()) == [1, 2]


@pytest.mark.feature("I20")
def test_sparks_runner_that_stops_inside_its_write_transaction_is_killed_and_delivery_continues(
    node: ArchivingServer, tmp_path: Path
) -> None:
    with paired(node, tmp_path, options=HANGS_SOON) as pair:
        pair.insert(1)
        pair.catch_up()
        place = ["--state", str(pair.sidecar.folder.root), "--lake", str(tmp_path / "lake"), "--once"]
        command = [sys.executable, "-m", "tidemark.pipeline", *place]
        started = subprocess.Popen(command, env=environment(**STUCK_INSIDE), stderr=subprocess.DEVNULL)
        with ended(started) as runner:
            assert runner.wait(timeout=120) == -signal.SIGKILL
        pair.wait_for(lambda: KILLED in pair.reported(), "who killed it")
        pair.insert(2)
        assert ids(pair.catch_up()) == [1, 2]
