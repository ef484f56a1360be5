"""A Spark session as a user's program starts it.

Unlike the pipeline's session, it has the JVM's own options: both compilers, and its collector.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tidemark.pipeline.driver.java import java_home

SETTINGS = {
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
END_S = 30


@contextmanager
def user_session(folder: Path, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """Start Spark with two cores in a JVM, which ends with the body; `folder`: for the search of a Java."""
    os.environ["JAVA_HOME"] = str(java_home(os.environ, folder))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("bench").master("local[2]")
    for name, value in {**SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        gateway = SparkContext._gateway  # noqa: SLF001 - PySpark keeps the JVM of a process otherwise
        assert gateway is not None
        spark.stop()
        gateway.shutdown()
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
        gateway.proc.stdin.close()
        gateway.proc.wait(END_S)
