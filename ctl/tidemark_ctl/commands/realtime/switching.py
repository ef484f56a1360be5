"""`cdcctl realtime on|off`: the operator's switch between realtime and archive delivery (I16)."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import FiniteSeconds, config_option, json_option, state_option

DEADLINE_S_DEFAULT = 120.0
deadline_option = click.option(
    "--deadline-s",
    type=FiniteSeconds(min=0),
    default=DEADLINE_S_DEFAULT,
    show_default=True,
    help="Return after this time and report what is missing.",
)


@click.command()
@state_option
@config_option
@deadline_option
@json_option
@deferred("realtime_switching.on")
def on() -> None:
    """Switch realtime on; return when the sidecar delivers.

    The archiver delivers older changes first, until its lag is below a quarter of the ring.
    """


@click.command()
@state_option
@config_option
@deadline_option
@click.option("--force", is_flag=True, help="Kill a sidecar that hangs: no heartbeat for watchdog.watchdog_s.")
@json_option
@deferred("realtime_switching.off")
def off() -> None:
    """Stop realtime until it is switched on; return when the archiver delivers. Works with a dead sidecar."""
