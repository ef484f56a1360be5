"""The Spark session of the pipeline: few log lines, UTC, the running Python, and an installed Java."""

import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidemark.io.state.process_folder import ProcessFolder
from tidemark.model.errors import ConfigError, ConsumerFailed, Disposition
from tidemark.pipeline.driver.checkpoint_files import serve_checkpoints
from tidemark.pipeline.driver.class_archive import archive_options
from tidemark.pipeline.driver.helper_python import helper_python
from tidemark.pipeline.driver.java import java_home
from tidemark.pipeline.failures import first_reason


class SparkRefused(ConfigError):
    """Spark could not be started as configured."""

    hint = "check --master and --driver-memory; see also Spark's own lines before this one"


class SparkGone(ConsumerFailed):
    """Spark's JVM died."""

    disposition = Disposition.RETRY
    hint = "check if the machine ran out of memory; the pipeline restarts automatically"


JAVA_TEMPORARY = "/tmp"  # noqa: S108 - `java.io.tmpdir` on Linux
JAVA_OPTIONS = (
    # The driver's code runs too seldom to be worth the second compiler: without it, the start takes two thirds of the
    # CPU, and so does a batch in the first minutes. Options of the user follow.
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
)
NO_PYTHON = "/nonexistent/python"
"""The Python of Spark's search for data sources, which imports each in a process of 2 CPU seconds.

Spark does not search if the program does not exist. The pipeline registers its only source itself.
"""
_JVM_EXITED = "JAVA_GATEWAY_EXITED"  # Spark's error condition for a JVM that was killed or could not start
_LOCAL_CHECKPOINTS = (
    # Writes a checkpoint's files by plain renames: 35 ms a batch less than the default on a local disk.
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


NO_SETTINGS: Mapping[str, str] = {}


def make_session(
    master: str,
    folder: ProcessFolder,
    *,
    driver_memory: str,
    local_checkpoint: bool,
    more: Mapping[str, str] = NO_SETTINGS,
) -> SparkSession:
    """Start Spark, with the settings `more` of the user, and set the environment that its processes inherit."""
    umask = 0o777 & ~folder.folder_mode
    before = os.umask(umask)  # for Spark's files; our files set their modes, and the user decides about the lake's
    try:
        java = java_home(os.environ, folder.root.absolute())
        java_options = f"{JAVA_OPTIONS} {archive_options(folder.root, java)}".rstrip()
        settings = _settings(java_options, umask, driver_memory, local_checkpoint=local_checkpoint)
        os.environ["JAVA_HOME"] = str(java)
        return _start(master, folder, {**settings, **more}, serves_checkpoints=local_checkpoint)
    finally:
        os.umask(before)


def scratch_folders(environment: Mapping[str, str], local_dir: str | None = None) -> list[Path]:
    """Return the folders in which Spark's driver and Python write temporary files; `local_dir` is `spark.local.dir`.

    NB: the JVM's folder is /tmp, independent of TMPDIR.
    """
    local = environment.get("SPARK_LOCAL_DIRS") or local_dir or JAVA_TEMPORARY
    folders = [*(part.strip() for part in local.split(",")), JAVA_TEMPORARY, tempfile.gettempdir()]
    return [Path(folder) for folder in dict.fromkeys(folders) if folder]


def local_dir_of(spark: SparkSession) -> str | None:
    """Return `spark.local.dir` of a session; None if it is not set, or the JVM does not answer."""
    try:
        found: str | None = spark.sparkContext.getConf().get("spark.local.dir")
    except (Py4JError, OSError):
        return None
    return found


def end_session(spark: SparkSession) -> None:
    """Stop Spark, also if its JVM has ended."""
    with suppress(PySparkException, Py4JError, OSError):
        spark.stop()


def _settings(java_options: str, umask: int, driver_memory: str, *, local_checkpoint: bool) -> dict[str, str]:
    settings = {
        "spark.driver.defaultJavaOptions": java_options,
        "spark.driver.memory": driver_memory,
        "spark.hadoop.fs.permissions.umask-mode": f"{umask:03o}",  # Hadoop sets modes explicitly
        "spark.driver.maxResultSize": "0",  # a batch is bounded by bytes before Spark receives it
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if local_checkpoint:
        settings["spark.sql.streaming.checkpointFileManagerClass"] = _LOCAL_CHECKPOINTS
        settings["spark.sql.streaming.checkpoint.fileChecksum.enabled"] = "false"
    return settings


def _start(
    master: str, folder: ProcessFolder, settings: Mapping[str, str], *, serves_checkpoints: bool
) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = NO_PYTHON
    os.environ["PYTHONPATH"] = os.pathsep.join(_python_path())
    os.environ["TZ"] = "UTC"
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ["PYSPARK_PYTHON"] = helper_python(os.environ["PYTHONPATH"], folder.root.absolute())
    builder = SparkSession.builder.appName("tidemark").master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        session = _session(builder)
        if serves_checkpoints:
            serve_checkpoints(session)
    except (Py4JNetworkError, ConnectionError) as error:
        raise SparkGone("Spark's JVM died while it started") from error
    except (PySparkException, Py4JError) as error:
        raise SparkRefused(f"Spark at {master} does not start: {first_reason(str(error))}") from error
    return session


def _session(builder: SparkSession.Builder) -> SparkSession:
    """Start Spark; retry once if its JVM ended without output: a second time means refused, not killed."""
    try:
        session: SparkSession = builder.getOrCreate()
    except PySparkException as error:
        if error.getCondition() != _JVM_EXITED:
            raise
        session = builder.getOrCreate()
    return session


def _python_path() -> list[str]:
    """Return PYTHONPATH with the folder of our package: Spark's Python processes import it by name."""
    ours = str(Path(__file__).parents[3])
    given = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return given if ours in given else [ours, *given]


def is_alive(spark: SparkSession) -> bool:
    """Return whether the JVM answers."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()  # noqa: SLF001 - PySpark has no public method
    except (Py4JError, OSError):
        return False
