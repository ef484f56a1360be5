"""`python -m sidecar`: arguments in, exit code out (I40). Everything else is `sidecar.app` and `sidecar.loop`."""

import os
import sys
from pathlib import Path

import click

from sidecar.app import run
from tidemark.io.config import load_config
from tidemark.io.ending import tell_ending
from tidemark.io.logs import configure_logs, get_log
from tidemark.io.state_folder import StateFolder


@click.command()
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="TOML file; see conf/tidemark.toml.")
@click.option("--state", required=True, type=click.Path(path_type=Path), help="State folder, made by `cdcctl init`.")
def main(config_path: Path | None, state: Path) -> None:
    """Capture changes of a PostgreSQL node in realtime."""
    configure_logs("json", "info")
    log = get_log("sidecar")
    try:
        config = load_config(config_path, os.environ)
        configure_logs(config.log.format, config.log.level)
        folder = StateFolder(state.resolve(), shared_with_group=bool(config.capture.group))
        folder.admit_group()
        run(config, folder, log)
    except Exception as error:  # noqa: BLE001 - the one place: whatever it is, it ends the process
        sys.exit(tell_ending(log, "sidecar ends", error))


if __name__ == "__main__":
    main()
