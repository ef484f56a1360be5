"""One Spark for all tests that do not kill it: starting one takes longer than most tests."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


@contextmanager
def running_spark(cache: Path) -> Iterator[SparkSession]:
    """Run a small local Spark; `cache` is created if it is missing."""
    cache.mkdir(parents=True, exist_ok=True)
    session = make_session("local[2]", StateFolder(cache), driver_memory="700m", local_checkpoint=True)
    try:
        yield session
    finally:
        session.stop()


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
        outbox.register(reader)
        metrics, log = metrics or PipelineMetrics(outbox.identity.capture), get_log("test")
        progress = PipelineProgress(metrics, log, capture, reader, str(lake))
        landing = DeltaLanding(LandingParts(settings, outbox, capture, progress, log))
        pipeline = Pipeline(settings, outbox, landing, progress, log, capture=capture, hold=hold)
        pipeline.run(spark, stop or threading.Event())
    return progress
