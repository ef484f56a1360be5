"""What a small batch on Spark does not do: it starts no process, runs no job, and asks the JVM few questions."""

import threading
from enum import Enum
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from py4j.clientserver import JavaClient  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from tests.support.processes.spark import land
from tests.support.workloads.feeder import RandomTables, feed, make_state
from tidemark.io.host.failpoints import arm
from tidemark.io.state.state_folder import StateFolder
from tidemark.pipeline.failpoints import Failpoint

GROUPS = 40
BATCH_BYTES = 60_000
BATCHES_MIN = 8
QUESTIONS_MAX = 14  # of one batch
ENDED_MAX = 2  # batches in which a process ended: a helper of an earlier query may end at any time
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def faults_of_ended_children(process: psutil.Process) -> int:
    """Return the page faults of all children of a process that have ended: they grow whenever one ends (proc(5))."""
    return int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[8])


@pytest.mark.feature("L11")
def test_a_batch_on_spark_starts_no_process_runs_no_job_and_asks_the_jvm_little(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (jvm,) = (child for child in psutil.Process().children(recursive=True) if child.name() == "java")
    questions: list[int] = []  # the threads that ask
    batches: list[tuple[int, int]] = []
    ask = JavaClient.send_command

    def counting(self: object, *arguments: object, **options: object) -> object:
        questions.append(threading.get_ident())
        return ask(self, *arguments, **options)

    def at_failpoint(point: Enum) -> None:
        if point is Failpoint.BATCH_RECEIVED:
            asked = questions.count(threading.get_ident())
            batches.append((asked, faults_of_ended_children(jvm)))

    monkeypatch.setattr(JavaClient, "send_command", counting)
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()  # noqa: SLF001 - PySpark has no public method
    jobs = scheduler.numTotalJobs()
    make_state(tmp_path / "state")
    feed(tmp_path / "state", RandomTables(3).groups(GROUPS))
    arm(at_failpoint)
    try:
        land(
            spark, StateFolder(tmp_path / "state"), tmp_path / "lake", tmp_path / "checkpoint", batch_bytes=BATCH_BYTES
        )
    finally:
        arm(None)
    assert len(batches) >= BATCHES_MIN
    assert scheduler.numTotalJobs() == jobs
    asked, faults = zip(*batches[1:], strict=True)  # the first one opens all
    steps = [after - before for before, after in pairwise(asked)]
    assert max(steps) <= QUESTIONS_MAX, steps
    ended = sum(after != before for before, after in pairwise(faults))
    assert ended <= ENDED_MAX, faults
