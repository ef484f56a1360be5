"""What a command says on standard error while it works."""

from collections.abc import Sequence

import click

from tidemark.io.node import Blocker
from tidemark.model.errors import NodeUnreachable
from tidemark.model.lsn import FullXid, Lsn


class Narrator:
    """Says what a seed waits for (`tidemark.runtime.seeding.SeedObserver`), and when the node is away."""

    def __init__(self) -> None:
        self._told: tuple[FullXid, ...] | None = None

    def waiting(self, blockers: Sequence[Blocker], waited_s: float) -> None:
        """Name the transactions that are waited for, whenever they are others than before."""
        del waited_s
        waited_for = tuple(blocker.xid for blocker in blockers)
        if waited_for != self._told:
            self._told = waited_for
            names = "; ".join(map(str, blockers)) or "none that this role can see"
            click.echo(f"waiting for older transactions to end: {names}", err=True)

    def replaying(self, lsn: Lsn, end_lsn: Lsn) -> None:
        """Keep quiet: the replay from the checkpoint takes moments."""

    def away(self, error: NodeUnreachable) -> None:
        """Say that the stream broke, and that it is made again."""
        click.echo(f"the stream broke, connecting again: {error}", err=True)
