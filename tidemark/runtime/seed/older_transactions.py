"""Waits for the end of transactions that are older than a seed, or than the snapshot of a copied table."""

import time
from collections.abc import Sequence
from typing import Protocol

from tidemark.io.node.node import Blocker, Node
from tidemark.model.errors import NodeUnfit
from tidemark.model.lsn import FullXid
from tidemark.model.snapshot import Snapshot

REPORT_INTERVAL_S = 1.0  # between reports of the transactions that are waited for


class OlderTransactions(NodeUnfit):
    """Transactions that were open when the seed began did not end in time."""

    hint = (
        "end them (COMMIT, ROLLBACK PREPARED, pg_terminate_backend), or raise seed.wait_s (--wait-s of "
        "`cdcctl tail`); creating a replication slot waits in the same way"
    )


class WaitObserver(Protocol):
    """Receives the progress of a wait for older transactions; called in the same thread, so it must return at once."""

    def waiting(self, blockers: Sequence[Blocker], waited_s: float) -> None:
        """Report the transactions for which the seed waits; called once a second."""


class Waiting:
    """A wait for the end of all transactions older than `below`, checked by `poll`, for up to `wait_s`."""

    def __init__(self, below: FullXid, wait_s: float, observer: WaitObserver) -> None:
        self._below = below
        self._wait_s = wait_s
        self._observer = observer
        self._started_s = self._reported_s = time.monotonic()

    def poll(self, node: Node) -> Snapshot | None:
        """Return the snapshot that shows that the wait is over, or None; raise if it takes too long."""
        snapshot = node.snapshot()
        if snapshot.xmin >= self._below:
            return snapshot
        now_s = time.monotonic()
        waited_s = now_s - self._started_s
        if now_s - self._reported_s >= REPORT_INTERVAL_S or waited_s > self._wait_s:
            self._reported_s = now_s
            blockers = node.blockers(self._below)
            self._observer.waiting(blockers, waited_s)
            if waited_s > self._wait_s:
                names = "; ".join(map(str, blockers)) or "none that this role can see"
                raise OlderTransactions(f"{node.where}: older transactions are open after {waited_s:.0f} s: {names}")
        return None
