"""A daemon with a bug on purpose: `python -m tests.support.planted PLANT ROLE ...`, for campaigns that must find it.

The product knows nothing of it: what is wrong is put in from outside, before the daemon runs.
"""

import runpy
import sys
from collections.abc import Callable, Mapping

from tidemark.io.state_transaction import StateTransaction
from tidemark.model.position import Epoch
from tidemark.wire.state import LEDGER, OutboxLedger


def no_epoch_check() -> None:
    """Let whoever owned an earlier epoch go on writing."""

    def check_nothing(_moving: StateTransaction, _epoch: Epoch | None) -> None:
        return

    setattr(StateTransaction, "check_epoch", check_nothing)  # noqa: B010 - assigning it is no type


def trim_at_delivered() -> None:
    """Delete from the outbox what is delivered into it, whether readers have it or not."""
    settle = StateTransaction.settle

    def settle_and_trim(moving: StateTransaction) -> OutboxLedger:
        ledger = settle(moving)
        trimmed = moving.outbox.trim(ledger, ledger.head)
        moving.put(LEDGER, trimmed)
        return trimmed

    setattr(StateTransaction, "settle", settle_and_trim)  # noqa: B010 - assigning it is no type


PLANTS: Mapping[str, Callable[[], None]] = {
    "no-epoch-check": no_epoch_check,
    "trim-at-delivered": trim_at_delivered,
}


if __name__ == "__main__":
    program, plant, role, *arguments = sys.argv
    PLANTS[plant]()
    sys.argv = [role, *arguments]
    runpy.run_module(role, run_name="__main__", alter_sys=False)
