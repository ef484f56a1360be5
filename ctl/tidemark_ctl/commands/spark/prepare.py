"""`cdcctl spark prepare`: replaces this process by the program that creates the archive of Spark's classes."""

import os
import sys
from pathlib import Path

import click

from tidemark.io.host.extras import SPARK
from tidemark.io.host.python_program import python_program
from tidemark_ctl.options import state_option


@click.command("prepare")
@state_option
@click.option("--shared-with-group", is_flag=True, help="The folder is shared with a group.")
@click.option("--if-missing", is_flag=True, help="Do nothing if this Java and Spark have an archive.")
def prepare_spark(*, state: Path, shared_with_group: bool, if_missing: bool) -> None:
    """Create an archive of Spark's classes in STATE: Spark's JVM then starts in half the CPU time.

    STATE may also be the runner folder of a pipeline on another host. Repeat the command after an update of Java or
    Spark. It takes a minute and 1 GB of memory, and may run while a pipeline runs.
    """
    SPARK.require()
    options = ["--state", str(state)]
    options += ["--shared-with-group"] if shared_with_group else []
    options += ["--if-missing"] if if_missing else []
    command = python_program("tidemark.pipeline.driver.preparation", *options)
    os.execv(sys.executable, command)  # noqa: S606 - replaces us: signals reach it
