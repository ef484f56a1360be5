"""Reports a cluster that does not answer or provides no executors: Spark itself waits without a message.

The pipeline waits for both: a cluster may be started after the pipeline, and a standalone master may lose all workers.
"""

import re
import socket
import threading
import time
from collections.abc import Sequence

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from tidemark.io.host.logs import Log
from tidemark.io.host.systemd import ALIVE, READY, notify
from tidemark.model.errors import ConsumerFailed
from tidemark.pipeline.landing.metrics import PipelineMetrics

CONNECT_S = 2.0  # of one address of the master
MASTER_EVERY_S = 2.0
COUNT_EVERY_S = 2.0
ABSENT_S = 5.0  # an absence of executors this long is reported
AGAIN_S = 60.0  # between two reports of the same condition
NO_EXECUTORS = "spark has no executors"
_STANDALONE = re.compile(r"spark://(.+)")
_ADDRESS = re.compile(r"([^:\[\]]+|\[[^\]]+\]):(\d+)")
_EXECUTORS_HINT = (
    "check on the page of the master that workers are registered and have the cores and memory that the "
    "pipeline requests; the pipeline continues when it has executors"
)


class MasterUnreachable(ConsumerFailed):
    """No connection to a standalone master."""

    hint = "check --master, and that the master runs and listens there"


def wait_for_master(master: str, stop: threading.Event, log: Log, *, once: bool) -> bool:
    """Wait until a standalone master answers; return False if `stop` is set first. With `once` raise immediately."""
    addresses = _addresses(master)
    reported_s = float("-inf")
    while addresses and not stop.is_set():
        if any(map(_answers, addresses)):
            return True
        failure = MasterUnreachable(f"Spark's master does not answer at {master}")
        if once:
            raise failure
        if time.monotonic() - reported_s >= AGAIN_S:
            reported_s = time.monotonic()
            log.warning("spark master does not answer", master=master, hint=failure.hint)
        notify(READY)
        notify(ALIVE)
        stop.wait(MASTER_EVERY_S)
    return not stop.is_set()


class ExecutorWatch:
    """Counts the executors of a running session at intervals; used by one thread."""

    def __init__(self, master: str, metrics: PipelineMetrics, log: Log) -> None:
        self._is_local = master.startswith("local")
        self._master = master
        self._metrics = metrics
        self._log = log
        self._counted_s = float("-inf")
        self._absent_since_s: float | None = None
        self._reported_s: float | None = None
        if self._is_local:
            metrics.executors.set(1)

    def check(self, spark: SparkSession) -> None:
        """Count if the interval has passed; report a lack of executors and its end."""
        now_s = time.monotonic()
        if self._is_local or now_s - self._counted_s < COUNT_EVERY_S:
            return
        self._counted_s = now_s
        self.record(executor_count(spark), now_s)

    def record(self, count: int, now_s: float) -> None:
        """Record the number of executors."""
        self._metrics.executors.set(count)
        if count:
            if self._reported_s is not None:
                self._log.info("spark has executors", executors=count)
            self._absent_since_s = self._reported_s = None
            return
        if self._absent_since_s is None:
            self._absent_since_s = now_s
        is_due = now_s - self._absent_since_s >= ABSENT_S
        if is_due and (self._reported_s is None or now_s - self._reported_s >= AGAIN_S):
            self._reported_s = now_s
            self._log.warning(NO_EXECUTORS, master=self._master, hint=_EXECUTORS_HINT)


def executor_count(spark: SparkSession) -> int:
    """Return the number of registered executors; 0 if the JVM does not answer."""
    try:
        infos = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()  # noqa: SLF001 - PySpark has no public method
        return len(infos) - 1  # the driver is one of them
    except (Py4JError, OSError):
        return 0


def _addresses(master: str) -> Sequence[tuple[str, int]]:
    """Return the hosts and ports of a standalone master; empty for other masters and for URLs that Spark rejects."""
    standalone = _STANDALONE.fullmatch(master)
    parts = standalone[1].split(",") if standalone is not None else []
    found = [address for part in parts if (address := _ADDRESS.fullmatch(part)) is not None]
    return [(address[1].strip("[]"), int(address[2])) for address in found]


def _answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, CONNECT_S).close()
    except OSError:
        return False
    return True
