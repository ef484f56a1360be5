"""Creates the archive of the classes that Spark loads: with it, a JVM starts in two thirds of the CPU time.

python -m tests.support.processes.class_archive  # does nothing if the archive exists
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from tests.support.processes.jvm import JVM_OPTIONS, QUIET, archive_path
from tests.support.processes.spark_process import DEADLINE_S, JVM, PROGRAMS, SparkProcess, wait_for
from tests.support.workloads.feeder import RandomTables, feed, make_state

SEED = 1
GROUPS = 10
BATCH_BYTES = 60_000
STARTED = "query starts"


def create(archive: Path) -> None:
    """Run a small pipeline whose JVM writes the archive when it ends."""
    archive.parent.mkdir(exist_ok=True)
    unfinished = archive.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    with TemporaryDirectory(prefix="tidemark-classes-") as folder:
        root = Path(folder)
        make_state(root / "state")
        feed(root / "state", RandomTables(SEED).groups(GROUPS))
        spark = SparkProcess(root / "state", root / "lake", root / "log", batch_bytes=BATCH_BYTES)
        spark.start("--once", SPARK_SUBMIT_OPTS=f"{JVM_OPTIONS} {QUIET} -XX:ArchiveClassesAtExit={unfinished}")
        try:
            wait_for(lambda: STARTED in spark.log() or not spark.running, STARTED, spark.log)
            jvms = spark.family(PROGRAMS[JVM])
            spark.wait()
            psutil.wait_procs(jvms, DEADLINE_S)  # a JVM writes the archive after the pipeline has ended
        finally:
            spark.end_all()
    unfinished.chmod(0o644)  # tests run pipelines as another user
    unfinished.rename(archive)


def main() -> int:
    """Create the archive if it does not exist; without it the tests run as well, but longer."""
    archive = archive_path()
    if not archive.exists():
        try:
            create(archive)
        except (AssertionError, OSError) as error:
            sys.stderr.write(f"no archive of Java's classes: {error}\n")
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
