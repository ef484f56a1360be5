"""`python -m sidecar`: arguments in, exit code out (I40). Everything else is `sidecar.app` and `sidecar.loop`."""

import os
import sys
from pathlib import Path

import click

from sidecar.app import run
from tidemark.io.config import load_config
from tidemark.io.logs import configure_logs, describe_error, get_log
from tidemark.io.state_folder import StateFolder
from tidemark.model.errors import ExitCode, TidemarkError


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
        run(config, StateFolder(state.resolve(), shared_with_group=bool(config.capture.group)), log)
    except TidemarkError as error:
        log.error("sidecar ends", exit_code=int(error.exit_code), **describe_error(error))  # noqa: TRY400 - an event
        sys.exit(error.exit_code)
    except Exception:
        log.exception("sidecar ends by an error of its own", exit_code=int(ExitCode.INTERNAL))
        sys.exit(ExitCode.INTERNAL)


if __name__ == "__main__":
    main()
