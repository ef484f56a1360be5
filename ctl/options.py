"""Options that mean the same everywhere, defined once."""

from pathlib import Path

import click

from tidemark.model.commit_time import CommitTime, parse_commit_time
from tidemark.model.lsn import Lsn, parse_lsn

LSN = parse_lsn  # an option's type: what is no LSN is a ConfigError with its own hint
PATH = click.Path(path_type=Path)  # what cannot be read is said, with a hint, by whoever reads it
state_option = click.option(
    "--state",
    type=PATH,
    required=True,
    envvar="TIDEMARK_STATE",
    help="The state folder.",
)
config_option = click.option(
    "--config",
    type=PATH,
    envvar="TIDEMARK_CONFIG",
    help="The configuration (TOML); conf/tidemark.toml names every key.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")


def lsn_or_time(text: str) -> Lsn | CommitTime:
    """Take an end of a range: an LSN, or a moment."""
    return parse_lsn(text) if "/" in text else parse_commit_time(text)
