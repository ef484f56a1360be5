"""The operator's confirmation of a loss."""

import sys
from collections.abc import Sequence

import click

from tidemark.model.errors import ConfigError


class NotConfirmed(ConfigError):
    """The operator did not confirm a loss."""

    hint = "repeat the command with --accept-break, or answer yes at a terminal"


def confirm_losses(losses: Sequence[object], *, accepted: bool) -> None:
    """Print each loss, and raise `NotConfirmed` unless it is `accepted` or the operator confirms it."""
    for loss in losses:
        click.echo(str(loss), err=True)
    if not losses or accepted:
        return
    if not sys.stdin.isatty() or not click.confirm("Continue with this loss?", err=True):
        raise NotConfirmed(f"{len(losses)} logs of the lake would lose changes; no copy was requested")
