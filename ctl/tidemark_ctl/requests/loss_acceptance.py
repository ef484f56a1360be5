"""The operator's confirmation of a loss."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from tidemark.io.readers.accepted_breaks import accept_breaks
from tidemark_ctl.requests.confirmation import NotConfirmed, confirm
from tidemark_ctl.views.lake_tree import LakeLoss

ACCEPT_HINT = "no copy was requested: repeat the command with --accept-break, or answer y at a terminal"


def accept_losses(state: Path, losses: Sequence[LakeLoss], *, accepted: bool) -> None:
    """Print each loss and record its acceptance; raise `NotConfirmed` if neither `accepted` nor the operator gives it.

    The pipeline continues only a log whose loss was accepted.
    """
    for loss in losses:
        click.echo(str(loss), err=True)
    if losses and not accepted:
        _confirm(len(losses))
    for reader in {loss.reader for loss in losses}:
        accept_breaks(state, reader, {loss.fault.key: loss.fault.after for loss in losses if loss.reader == reader})


def _confirm(count: int) -> None:
    if not sys.stdin.isatty():
        raise NotConfirmed(f"{count} logs of the lake would lose changes", hint=ACCEPT_HINT)
    confirm("Continue with this loss?", yes=False, hint=ACCEPT_HINT)
