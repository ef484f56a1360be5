"""`cdcctl spark run`: replaces this process by the pipeline from the outbox to the lake."""

import os
import sys
from pathlib import Path

import click

from tidemark.io.host.extras import SPARK
from tidemark_ctl import settings
from tidemark_ctl.options import config_option, lake_option, state_option


@click.command("run", context_settings={"ignore_unknown_options": True})
@state_option
@config_option
@lake_option
@click.option("--master", default="local[*]", show_default=True, help="The Spark master.")
@click.argument("more", nargs=-1, type=click.UNPROCESSED)
def run_spark(*, state: Path, config: Path | None, lake: str, master: str, more: tuple[str, ...]) -> None:
    """Run the pipeline: change log and replica of each captured table, as Delta tables under LAKE.

    MORE is passed to the pipeline (`python -m tidemark.pipeline --help`).
    """
    SPARK.require()
    command = [sys.executable, "-m", "tidemark.pipeline", "--state", str(state), "--lake", lake]
    path = settings.config_path(state, config)
    command += ["--config", str(path)] if path is not None else []
    os.execv(sys.executable, [*command, "--master", master, *more])  # noqa: S606 - replaces us: signals reach it
