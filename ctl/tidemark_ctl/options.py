"""Options with the same meaning in several commands."""

import os
from collections.abc import Callable
from math import isfinite
from os import PathLike
from pathlib import Path

import click

from tidemark.engine.selection import EVERY_ORIGIN
from tidemark.io.host.local_path import lake_location, local_path
from tidemark.io.process.config_reference import CONFIG_REFERENCE
from tidemark.model.commit_time import CommitTime, parse_lsn_or_time
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import Lsn, parse_lsn


def origin(text: str) -> str:
    """Return the specification of a replication origin."""
    if text != EVERY_ORIGIN and not text.isdecimal():
        raise ConfigError(
            f"{text} is not a replication origin", hint="give a number, pg_replication_origin.roident, or any"
        )
    return text


def lsn(text: str) -> Lsn:
    """Return the LSN; other text is a `ConfigError` with a hint. `--help` shows this function's name."""
    return parse_lsn(text)


class FiniteSeconds(click.FloatRange):
    """A time, which has an end."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; infinity and NaN are rejected."""
        found: float = super().convert(value, param, ctx)
        if not isfinite(found):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return found


class LocalPath(click.Path):
    """A local folder or file, which need not exist; the code that reads it reports errors with a hint."""

    def convert(self, value: str | PathLike[str], param: click.Parameter | None, _ctx: click.Context | None) -> Path:
        """Return the path; a URL is rejected."""
        return local_path(str(value), param.opts[0] if param is not None else "")


class LakeLocation(click.Path):
    """A local folder, or the URL of a prefix in an object store."""

    def convert(self, value: str | PathLike[str], param: click.Parameter | None, _ctx: click.Context | None) -> str:
        """Return the absolute path, or the URL."""
        return lake_location(str(value), param.opts[0] if param is not None else "")


STATE_VARIABLE = "TIDEMARK_STATE"
PATH = LocalPath(path_type=Path)
LAKE = LakeLocation()
state_option = click.option(
    "--state",
    type=PATH,
    required=True,
    envvar=STATE_VARIABLE,
    show_envvar=True,
    help="The state folder.",
)
_PLACE_OPTIONS = (
    click.option("--state", type=PATH, help="The state folder; without --server the default is TIDEMARK_STATE."),
    click.option("--server", metavar="ADDRESS", help="In place of --state: the outbox server, grpc+tls://HOST:PORT."),
    click.option("--token-file", type=PATH, help="The token of the server: a copy of STATE/server.token of its host."),
    click.option("--tls-roots", type=PATH, help="The certificate (PEM) that signed the server's."),
)


def outbox_options(command: click.decorators.FC) -> click.decorators.FC:
    """Add the options that name the outbox: a state folder, or a server."""
    for option in reversed(_PLACE_OPTIONS):
        command = option(command)
    return command


def state_or_server(state: Path | None, server: str | None) -> Path | None:
    """Return the state folder, also of TIDEMARK_STATE; None for a server. Raise `ConfigError` unless it is one."""
    if state is None and server is None and os.environ.get(STATE_VARIABLE):
        state = local_path(os.environ[STATE_VARIABLE], STATE_VARIABLE)
    if (state is None) == (server is None):
        raise ConfigError(
            "the outbox of one capture is required: --state or --server",
            hint="use --state STATE on the host of the capture, --server ADDRESS on others",
        )
    return state


lake_option = click.option(
    "--lake", type=LAKE, required=True, help="The lake: a folder, or s3://BUCKET/PREFIX in an object store."
)
reader_option = click.option(
    "--reader", default="spark", show_default=True, help="The reader of the pipeline that writes the lake."
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
config_option = click.option(
    "--config",
    type=PATH,
    envvar="TIDEMARK_CONFIG",
    show_envvar=True,
    help=f"The configuration (TOML), by default tidemark.toml in the state folder; {CONFIG_REFERENCE} has every key.",
)
partition_root_option = click.option(
    "--partition-root",
    "partition_roots",
    multiple=True,
    help="Deliver changes of partitions under the name of these partitioned tables; patterns as for --table.",
)
exclude_origin_option = click.option(
    "--exclude-origin",
    "origins",
    multiple=True,
    type=origin,
    help="Omit changes of this replication origin: a number (pg_replication_origin.roident), or any.",
)
transactions_option = click.option(
    "--transactions",
    "counting",
    is_flag=True,
    help="Print the begin and end of each transaction, with counts by table.",
)
message_option = click.option(
    "--message",
    "messages",
    multiple=True,
    default=("*",),
    help="Print logical messages with these prefixes; * matches any text.",
)


def request_deadline_option(default_s: float) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """Return the option for how long a command waits for the answer to its request, which stays after that."""
    return click.option(
        "--deadline-s",
        type=FiniteSeconds(min=0),
        default=default_s,
        show_default=True,
        help="Return after this time and report what is missing; the request is kept.",
    )


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def parked_arguments(command: click.decorators.FC) -> click.decorators.FC:
    """Add the numbers of parked changes, or --all."""
    numbers = click.argument("numbers", type=click.IntRange(min=1), nargs=-1, metavar="[NUMBER]...")
    return numbers(click.option("--all", "every", is_flag=True, help="All parked changes.")(command))


def lsn_or_time(text: str) -> Lsn | CommitTime:
    """Parse an end of a range: an LSN or a time."""
    return parse_lsn_or_time(text)
