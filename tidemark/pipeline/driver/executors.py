"""Whether a Spark session has executors, and the request for some where Spark allocates them as needed.

With `spark.dynamicAllocation.enabled`, Spark starts executors only for waiting tasks, and ends those that are idle. The
driver hands out work only if there are executors, so it first gives Spark an empty task to run.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from pyspark.sql import SparkSession

from tidemark.engine.ports import Clock
from tidemark.io.host.logs import Log

WITHOUT_S = 10.0  # executors may be late, or gone for a moment, but not longer
POLL_S = 0.5
AGAIN_S = 60.0  # between two reports
DYNAMIC = "spark.dynamicAllocation.enabled"


class Executors:
    """The executors of one session."""

    def __init__(self, log: Log, clock: Clock, wait: Callable[[float], None]) -> None:
        """`wait` sleeps for some seconds."""
        self._log = log
        self._clock = clock
        self._wait = wait
        self._pool = ThreadPoolExecutor(1, "tidemark-allocation")
        self._spark: SparkSession | None = None
        self._is_dynamic = False
        self._request: Future[None] | None = None
        self._seen_s = 0.0  # when there were executors last, or were requested
        self._reported_s = float("-inf")

    def attach(self, spark: SparkSession) -> None:
        """Use the executors of a session, which may come somewhat later."""
        self._spark, self._seen_s, self._request = spark, self._clock.monotonic_s(), None
        self._is_dynamic = spark.sparkContext.getConf().get(DYNAMIC, "false") == "true"

    def are_there(self) -> bool:
        """Return whether there are executors; wait for those that are late, or that Spark has to allocate."""
        if self._is_dynamic and not self.count():
            self._request_some()
        while not self.are_gone():
            if self.count():
                return True
            self._wait(POLL_S)
        return False

    def _request_some(self) -> None:
        """Let Spark have a task without executors; one that still waits for them is not repeated."""
        if self._spark is not None and (self._request is None or self._request.done()):
            self._seen_s = self._clock.monotonic_s()
            self._request = self._pool.submit(self.run_empty_task, self._spark)

    def run_empty_task(self, spark: SparkSession) -> None:
        """Run a task that does nothing, once there is an executor."""
        spark.sparkContext.parallelize([0], 1).count()

    def count(self) -> int:
        """Return the number of executors."""
        if self._spark is None:
            return 0
        count = int(self._spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1  # noqa: SLF001
        if count:
            self._seen_s = self._clock.monotonic_s()
        return count

    def are_gone(self) -> bool:
        """Return whether there are none, and report it."""
        now_s = self._clock.monotonic_s()
        if self._spark is not None and (self.count() or now_s - self._seen_s < WITHOUT_S):
            return False
        if now_s - self._reported_s >= AGAIN_S:
            self._reported_s = now_s
            hint = "check that the cluster has free cores and memory for an executor"
            self._log.warning("spark has no executors: the driver writes all files itself", hint=hint)
        return True
