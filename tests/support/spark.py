"""One Spark for all tests that do not kill it: starting one costs more than most tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from tidemark.io.state_folder import StateFolder
from tidemark.pipeline.session import make_session


@contextmanager
def running_spark(cache: Path) -> Iterator[SparkSession]:
    """Run a small local Spark."""
    session = make_session("local[2]", StateFolder(cache), driver_memory="700m", local_checkpoint=True)
    try:
        yield session
    finally:
        session.stop()
