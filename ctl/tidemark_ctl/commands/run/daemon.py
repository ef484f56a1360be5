"""`cdcctl run sidecar` and `cdcctl run archiver`: replace this process by one of the daemons."""

import os
import sys
from pathlib import Path

import click

from tidemark.io.host.python_program import python_program
from tidemark_ctl import settings
from tidemark_ctl.options import config_option, state_option

moved_option = click.option(
    "--moved",
    is_flag=True,
    help="Confirm, for one start, that this state delivers although it was moved here, or a copy of it was ahead.",
)


@click.command()
@state_option
@config_option
@moved_option
def sidecar(*, state: Path, config: Path | None, moved: bool) -> None:
    """Run the realtime process: stream, decode, deliver."""
    become("tidemark_sidecar", state, config, *(["--moved"] if moved else []))


@click.command()
@state_option
@config_option
@moved_option
def archiver(*, state: Path, config: Path | None, moved: bool) -> None:
    """Run the process that reads archived WAL and delivers while the sidecar cannot."""
    become("tidemark_archiver", state, config, *(["--moved"] if moved else []))


def become(module: str, state: Path, config: Path | None, *arguments: str) -> None:
    """Replace this process by a Python program of Tidemark, which keeps the pid and receives the signals."""
    path = settings.config_path(state, config)
    chosen = ["--config", str(path)] if path is not None else []
    os.execv(sys.executable, python_program(module, "--state", str(state), *chosen, *arguments))  # noqa: S606
