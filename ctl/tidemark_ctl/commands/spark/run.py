"""`cdcctl spark run`: replaces this process by the pipeline from the outbox to the lake."""

from pathlib import Path

import click

from tidemark.io.host.extras import SPARK
from tidemark.io.host.python_program import python_program, replace_process
from tidemark_ctl import settings
from tidemark_ctl.options import PATH, config_option, lake_option, outbox_options, state_or_server


@click.command("run", context_settings={"ignore_unknown_options": True})
@outbox_options
@click.option("--runner-folder", type=PATH, help="With --server: folder of the pipeline's own files.")
@config_option
@lake_option
@click.option("--master", default="local[*]", show_default=True, help="The Spark master.")
@click.argument("more", nargs=-1, type=click.UNPROCESSED)
def run_spark(
    *,
    state: Path | None,
    server: str | None,
    token_file: Path | None,
    tls_roots: Path | None,
    runner_folder: Path | None,
    config: Path | None,
    lake: str,
    master: str,
    more: tuple[str, ...],
) -> None:
    """Run the pipeline: change log and replica of each captured table, as Delta tables under LAKE.

    With --server, it needs nothing else of the host of the capture. MORE is passed to the pipeline
    (`python -m tidemark.pipeline --help`).
    """
    SPARK.require()
    state = state_or_server(state, server)
    options = {
        "--state": state,
        "--server": server,
        "--token-file": token_file,
        "--tls-roots": tls_roots,
        "--runner-folder": runner_folder,
        "--config": config if state is None else settings.config_path(state, config),
    }
    given = [part for name, value in options.items() if value is not None for part in (name, str(value))]
    command = python_program("tidemark.pipeline", *given, "--lake", lake, "--master", master, *more)
    replace_process(command, "cdcctl spark run")
