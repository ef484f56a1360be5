"""What a command says on standard error while it works."""

from collections.abc import Sequence

import click

from tidemark.io.node import Blocker
from tidemark.model.lsn import Lsn


class Narrator:
    """Says what a seed waits for (`tidemark.runtime.seeding.SeedObserver`)."""

    def __init__(self) -> None:
        self._told: tuple[str, ...] = ()

    def waiting(self, blockers: Sequence[Blocker], waited_s: float) -> None:
        """Name the transactions that are waited for, whenever they are others than before."""
        del waited_s
        names = tuple(map(str, blockers))
        if names != self._told:
            self._told = names
            click.echo(f"waiting for older transactions to end: {'; '.join(names)}", err=True)

    def replaying(self, lsn: Lsn, end_lsn: Lsn) -> None:
        """Keep quiet: the replay from the checkpoint takes moments."""
