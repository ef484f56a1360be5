"""One JVM for the Spark of all tests that do not kill it: a session of theirs, or pipelines as processes in turn.

Starting Spark takes longer than most tests. Half of it is the start of a JVM, and its first use of each class.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tidemark.engine.selection import Selection
from tidemark.io.host.log_output import get_log
from tidemark.io.state.state_folder import StateFolder
from tidemark.pipeline.driver.capture_place import CapturePlace, StatePlace
from tidemark.pipeline.driver.runner import Pipeline
from tidemark.pipeline.driver.session import make_session
from tidemark.pipeline.landing.delta_landing import DeltaLanding
from tidemark.pipeline.landing.lake_epoch import LakeHold
from tidemark.pipeline.landing.landing import LandingParts
from tidemark.pipeline.landing.metrics import PipelineMetrics
from tidemark.pipeline.landing.progress import PipelineProgress
from tidemark.pipeline.landing.settings import Settings

BATCH_BYTES = 1 << 20


class SparkJvm:
    """A JVM with at most one Spark at a time: PySpark keeps the JVM of a process when a session ends."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._session: SparkSession | None = None

    def session(self) -> SparkSession:
        """Return the session of this process: a small local Spark. It ends when the JVM is lent."""
        if self._session is None:
            self._session = make_session(
                "local[2]", StateFolder(self._cache), driver_memory="700m", local_checkpoint=True
            )
        return self._session

    def lend(self) -> dict[str, str]:
        """Return the variables with which PySpark uses this JVM in another process, until that ends or is killed.

        The JVM was not started by that process, nor does it end with it: for a test of either, the process starts its
        own. It has the memory, user and environment of this process's JVM.
        """
        if SparkContext._gateway is None:  # noqa: SLF001 - PySpark has no public name
            self.session()  # starts the JVM, with the environment that a pipeline gives to its own
        self.end()
        gateway = SparkContext._gateway  # noqa: SLF001
        assert gateway is not None
        # NB: Spark will call the other process. The next query of this one registers another server for such calls; the
        # present one is not shut down, because that would wait for a call.
        gateway._callback_server = None  # noqa: SLF001
        used = gateway.gateway_parameters
        return {"PYSPARK_GATEWAY_PORT": str(used.port), "PYSPARK_GATEWAY_SECRET": str(used.auth_token)}

    def end(self) -> None:
        """End the Spark that runs, of this process or of one that was killed; the JVM waits for the next one."""
        if self._session is not None:
            self._session.stop()
            self._session = None
            return
        if SparkContext._gateway is None:  # noqa: SLF001
            return
        left = SparkContext._gateway.jvm.SparkSession.getDefaultSession()  # noqa: SLF001
        if left.isDefined():
            for query in left.get().streams().active():
                query.stop()  # also waits until it writes nothing more
            left.get().stop()


@contextmanager
def spark_jvm(cache: Path) -> Iterator[SparkJvm]:
    """Have a JVM for Spark, started by its first use; `cache` is created if it is missing."""
    cache.mkdir(parents=True, exist_ok=True)
    made = SparkJvm(cache)
    try:
        yield made
    finally:
        made.end()


def land(
    spark: SparkSession,
    folder: StateFolder,
    lake: Path | str,
    checkpoint: Path,
    *,
    reader: str = "spark",
    batch_bytes: int = BATCH_BYTES,
    stop: threading.Event | None = None,
    metrics: PipelineMetrics | None = None,
    hold: LakeHold | None = None,
    place: CapturePlace | None = None,
) -> PipelineProgress:
    """Write the values of a state's outbox into a lake; with `stop`: all that arrive until it is set.

    The outbox is read from `place`, by default the state folder itself.
    """
    place = place or StatePlace(folder, Selection())
    settings = Settings(
        folder.root,
        str(lake),
        str(checkpoint),
        reader,
        batch_bytes,
        once=stop is None,
        source=place.source,
    )
    with place.open() as opened:
        outbox, capture = opened.outbox, opened.capture
        metrics, log = metrics or PipelineMetrics(outbox.identity.capture), get_log("test")
        progress = PipelineProgress(metrics, log, capture, reader, str(lake))
        landing = DeltaLanding(LandingParts(settings, outbox, capture, progress, log, partial(outbox.register, reader)))
        pipeline = Pipeline(settings, outbox, landing, progress, log, capture=capture, hold=hold)
        pipeline.run(spark, stop or threading.Event())
    return progress
