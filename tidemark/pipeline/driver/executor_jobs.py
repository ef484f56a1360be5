"""Runs jobs of Spark with a deadline, and gives the executors nothing for a while after a late one.

An executor that hangs in a system call would otherwise stop the pipeline. A stop of the pipeline shortens the deadline.
After it the job is cancelled, and for as long as a job may take the driver works by itself: waiting takes at most half
of the time. What a late executor still writes is in no commit (`sinks.executor_files`).
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from threading import Event
from typing import TypeVar
from uuid import uuid4

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidemark.engine.ports import Clock
from tidemark.io.host.logs import Log
from tidemark.model.errors import ConsumerFailed, Disposition
from tidemark.pipeline.driver.executors import POLL_S, Executors
from tidemark.pipeline.failures import first_reason, named_failure
from tidemark.pipeline.landing.metrics import PipelineMetrics

JOBS_AT_ONCE = 8  # each waits for the executors
STOPPED_S = 30.0  # for a job while the pipeline stops: a quarter of TimeoutStopSec of its unit
ResultT = TypeVar("ResultT")


class ExecutorsFailed(ConsumerFailed):
    """The executors could not write the files of a run."""

    disposition = Disposition.RETRY
    hint = "see the logs of Spark's executors; they need the packages of the driver, the outbox server and the lake"


class ExecutorJobs:
    """The jobs of one session, several at a time."""

    def __init__(
        self, log: Log, metrics: PipelineMetrics, clock: Clock, executors: Executors | None, job_s: float
    ) -> None:
        """Let a job take `job_s` seconds. `executors` replaces those of the session."""
        self._log, self._metrics, self._clock, self._job_s = log, metrics, clock, job_s
        self._executors = executors or Executors(log, clock, time.sleep)
        self._pool = ThreadPoolExecutor(JOBS_AT_ONCE, "tidemark-executors")
        self._spark: SparkSession | None = None
        self._stop = Event()  # replaced by the caller's in `attach`
        self._paused_until_s = float("-inf")

    def attach(self, spark: SparkSession, stop: Event) -> None:
        """Use the executors of a session, which may come somewhat later. `stop` is set once the pipeline stops."""
        self._spark, self._stop = spark, stop
        self._executors.attach(spark)

    def are_there(self) -> bool:
        """Return whether executors may write a run; wait for those that are late."""
        return not self.are_paused and self._executors.are_there()

    @property
    def are_paused(self) -> bool:
        """Return whether executors get nothing: there is no session, or a job was late."""
        return self._spark is None or self._clock.monotonic_s() < self._paused_until_s

    def run(self, uri: str, task_count: int, job: Callable[[SparkContext], ResultT]) -> ResultT | None:
        """Run a job for the table at `uri`; None: it was late, or there are no executors any more.

        Raises `ExecutorsFailed`, or the error of Tidemark that a task raised.
        """
        assert self._spark is not None, "asked before"
        group, begun_s, context = uuid4().hex, self._clock.monotonic_s(), self._spark.sparkContext

        def run_in_group() -> ResultT:
            context.setJobGroup(group, f"files of {uri}")
            return job(context)

        future = self._pool.submit(run_in_group)
        try:
            found = self._result(context, group, future, begun_s + self._job_s)
        except (PySparkException, Py4JError) as error:
            if self._executors.are_gone():
                return None
            named = named_failure(str(error))
            raise named or ExecutorsFailed(f"the executors did not write: {first_reason(str(error))}") from error
        finally:
            self._metrics.executor_seconds.inc(self._clock.monotonic_s() - begun_s)
        if found is None:
            self._pause(uri, task_count)
        return found

    def _pause(self, uri: str, task_count: int) -> None:
        self._paused_until_s = self._clock.monotonic_s() + self._job_s
        self._metrics.executor_late_jobs.inc()
        hint = "see the logs of Spark's executors: a task hangs, or waits for a free core (lake.executor_job_s)"
        self._log.warning(
            "executors are late: the driver writes the files itself",
            table=uri,
            tasks=task_count,
            paused_s=self._job_s,
            hint=hint,
        )

    def _result(self, context: SparkContext, group: str, job: Future[ResultT], deadline_s: float) -> ResultT | None:
        """Wait for a job; cancel it if all executors are gone, or at the deadline: then return None.

        A cancelled job is not awaited: its late result is not used, and its thread ends with it.
        """
        while True:
            try:
                return job.result(POLL_S)
            except NotYet:
                now_s = self._clock.monotonic_s()
                if self._stop.is_set():
                    deadline_s = min(deadline_s, now_s + STOPPED_S)
                if now_s >= deadline_s:
                    context.cancelJobGroup(group)
                    return None
                if not self._executors.count() and self._executors.are_gone():
                    context.cancelJobGroup(group)
