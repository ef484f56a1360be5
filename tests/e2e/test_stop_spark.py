"""A stop of the pipeline as by systemd or a terminal: of every process of the group at once."""

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.faults.spark_campaign import SparkCampaign
from tests.support.lakes.lakes import feed_by_hand
from tests.support.processes.spark_process import DEADLINE_S, wait_for
from tests.support.workloads.feeder import RandomTables, feed, make_state
from tidemark.io.host.failpoints import LOG_VARIABLE
from tidemark.io.host.systemd import ALIVE, READY, STOPPING
from tidemark.io.state.state_folder import StateFolder
from tidemark.pipeline.failpoints import Failpoint

# A Java that starts as slowly as requested; its second start fails at once.
JAVA = """#!/bin/bash
[ "$1" = -version ] && echo 'openjdk version "21"' >&2 && exit 0
[ -e {started} ] && exit 1
touch {started}
exec sleep 600
"""


@contextmanager
def listening(path: Path) -> Iterator[list[str]]:
    """Listen as systemd does; messages are appended to a list."""
    said: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(path))

        def listen() -> None:
            while text := channel.recv(100).decode():
                said.append(text)

        listener = threading.Thread(target=listen)
        listener.start()
        try:
            yield said
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ending:
                ending.sendto(b"", str(path))
            listener.join()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.feature("N22")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_of_all_processes_at_once_finishes_the_present_batch(tmp_path: Path, number: signal.Signals) -> None:
    campaign, passed = SparkCampaign(tmp_path, seed=6, groups=10), tmp_path / "passed"
    make_state(campaign.state)
    feed(campaign.state, RandomTables(campaign.seed).groups(campaign.groups))
    spark, point = campaign.spark, Failpoint.TABLES_DONE
    with listening(tmp_path / "notify") as said:
        variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), LOG_VARIABLE: str(passed)}
        spark.start(failpoint=f"{point.value}:1:wait", **variables)
        try:
            wait_for(lambda: passed.exists() and point.value in passed.read_text(), "a batch", spark.log)
            family = spark.family()
            spark.stop_group(number)
            wait_for(lambda: STOPPING in said, "the notice of the stop")
            assert psutil.wait_procs(family, DEADLINE_S)[1] == []
        finally:
            spark.end_all()
    assert said[0] == READY
    assert ALIVE in said
    assert "pipeline restarts" not in spark.log_path.read_text()
    assert Failpoint.POSITIONS_WRITTEN.value in passed.read_text()  # the current batch was finished
    feed_by_hand(StateFolder(campaign.state), campaign.lake, "spark")
    campaign.check()


@pytest.mark.timeout(300)
@pytest.mark.feature("N22")
def test_a_stop_while_the_jvm_starts_is_a_stop(tmp_path: Path) -> None:
    campaign, started = SparkCampaign(tmp_path, seed=6, groups=1), tmp_path / "started"
    make_state(campaign.state)
    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA.format(started=started))
    java.chmod(0o700)
    spark = campaign.spark
    spark.start(JAVA_HOME=str(java.parent.parent))
    try:
        wait_for(lambda: started.exists() or not spark.running, "a JVM", spark.log)
        spark.stop_group()
    finally:
        spark.end_all()
    assert "pipeline stopped" in spark.log_path.read_text()
