"""`cdcctl check`: tests the whole path from the node to the readers, and reports the leg that is broken (I44)."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import FiniteSeconds, config_option, json_option, state_option

DEADLINE_S_DEFAULT = 60.0


@click.command()
@state_option
@config_option
@click.option(
    "--deadline-s",
    type=FiniteSeconds(min=0, min_open=True),
    default=DEADLINE_S_DEFAULT,
    show_default=True,
    help="A leg that takes longer counts as broken.",
)
@json_option
@deferred("check.check")
def check() -> None:
    """Write a marker into the WAL and follow it through capture, archive, consumer and readers.

    Exit code 0: the marker arrived everywhere. 1: the message names the broken legs, and the hint the action for the
    first one. The command works in every mode; for the archive it requests a segment switch, if that is granted.
    """
