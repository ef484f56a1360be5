"""Executors of a local session: Spark runs their tasks in its own Python processes, and counts no executor."""

import time
from pathlib import Path
from threading import Event
from typing import TypeVar

from pyspark.sql import SparkSession

from tidemark.engine.ports import Clock
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.log_output import get_log
from tidemark.io.process.lake_config import DEFAULT_LAKE, LakeConfig
from tidemark.pipeline.driver.executor_writers import ExecutorWriters
from tidemark.pipeline.driver.executors import Executors
from tidemark.pipeline.landing.metrics import PipelineMetrics
from tidemark.pipeline.source.options import SourceOptions

WritersT = TypeVar("WritersT", bound=ExecutorWriters)


class LocalExecutors(Executors):
    """The executor is the local session itself."""

    def count(self) -> int:
        return 1


def local_writers(
    kind: type[WritersT],
    source: SourceOptions,
    lake: Path | str,
    metrics: PipelineMetrics,
    spark: SparkSession,
    *,
    clock: Clock | None = None,
    stop: Event | None = None,
    settings: LakeConfig = DEFAULT_LAKE,
) -> WritersT:
    """Return writers of the class `kind` that write the files of the lake by jobs of `spark`."""
    log, used = get_log("test"), clock or SystemClock()
    executors = LocalExecutors(log, used, time.sleep)
    writers = kind(source, str(lake), settings, log, metrics, clock=used, executors=executors)
    writers.attach(spark, stop or Event())
    return writers
