"""The progress of a seed, as it is reported to the program that makes it."""

from collections.abc import Sequence
from typing import Protocol

from tidemark.io.node.node import Blocker
from tidemark.model.errors import TidemarkError
from tidemark.model.lsn import Lsn
from tidemark.runtime.seed.older_transactions import WaitObserver


class SeedObserver(WaitObserver, Protocol):
    """Receives the progress of a seed, in the same way."""

    def replaying(self, start_lsn: Lsn, lsn: Lsn, end_lsn: Lsn) -> None:
        """Report that WAL below `lsn` is replayed, of the known [start_lsn, end_lsn) since the checkpoint."""

    def repeating(self, error: TidemarkError, attempt: int, attempts_max: int) -> None:
        """Report that attempt number `attempt` ended with `error`, and that the next one begins."""


class SilentObserver:
    """An observer that ignores all reports."""

    def waiting(self, blockers: Sequence[Blocker], waited_s: float) -> None:
        """Do nothing."""

    def replaying(self, start_lsn: Lsn, lsn: Lsn, end_lsn: Lsn) -> None:
        """Do nothing."""

    def repeating(self, error: TidemarkError, attempt: int, attempts_max: int) -> None:
        """Do nothing."""
