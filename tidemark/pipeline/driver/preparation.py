"""The program of `cdcctl spark prepare`: runs a query that loads the classes of the pipeline, and archives them."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tidemark.io.host.local_path import local_path
from tidemark.io.host.log_output import configure_logs, get_log
from tidemark.io.process.ending import report_ending
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.process_folder import ProcessFolder
from tidemark.model.errors import ConfigError, ExitCode
from tidemark.pipeline.driver.class_archive import create_archive, find_archive
from tidemark.pipeline.driver.java import java_home
from tidemark.pipeline.driver.session import end_session, make_session
from tidemark.pipeline.driver.trial_query import run_trial

ROLE = "spark-prepare"
MEMORY = "512m"
SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"  # options of the JVM, in Spark's environment


def main(arguments: Sequence[str] | None = None) -> int:
    """Create the archive; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tidemark.pipeline.driver.preparation", allow_abbrev=False)
    parser.add_argument("--state", required=True)
    parser.add_argument("--shared-with-group", action="store_true")
    parser.add_argument("--if-missing", action="store_true", help="do nothing if this Java and Spark have an archive")
    given = parser.parse_args(arguments)
    configure_logs("json", "info")
    log = get_log("pipeline")
    try:
        folder = ProcessFolder(local_path(given.state, "--state"), given.shared_with_group)
        if given.if_missing and find_archive(folder.root, java_home(os.environ, folder.root.absolute())):
            return ExitCode.SUCCESS
        log.info("spark starts once to record its classes, which takes about a minute")
        archive = prepare(folder)
    except Exception as error:  # noqa: BLE001 - any error ends the process
        return report_ending(log, "no archive of Spark's classes", error)
    log.info("spark's classes archived", path=str(archive), bytes=archive.stat().st_size)
    return ExitCode.SUCCESS


def prepare(folder: ProcessFolder) -> Path:
    """Create the archive of the classes that a query loads; return its path."""
    if not folder.root.is_dir():
        raise ConfigError(f"there is no folder {folder.root}", hint="name the state folder, or the runner folder")
    with RoleLock.acquire(folder, ROLE), TemporaryDirectory(prefix="tidemark-classes-") as scratch:
        classes = Path(scratch) / "classes"
        listing = f"-XX:DumpLoadedClassList={classes}"
        os.environ[SUBMIT_OPTIONS] = f"{os.environ.get(SUBMIT_OPTIONS, '')} {listing}".strip()
        spark = make_session("local[2]", folder, driver_memory=MEMORY, local_checkpoint=True)
        try:
            run_trial(spark, Path(scratch))
            jvm = spark.sparkContext._jvm  # noqa: SLF001 - PySpark has no public name
            assert jvm is not None
            class_path = str(jvm.java.lang.System.getProperty("java.class.path"))
        finally:
            end_session(spark)
        return create_archive(folder, Path(os.environ["JAVA_HOME"]), classes, class_path)


if __name__ == "__main__":
    sys.exit(main())
