"""A daemon with a bug: `python -m tests.support.faults.planted PLANT MODULE ...`, for campaigns that must find it.

The product does not contain the bugs: they are patched in before the daemon runs.
"""

import runpy
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from functools import partial
from typing import Required, Unpack

from tidemark.engine.handover import Event, move
from tidemark.io.host.logs import Log
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_transaction import StateTransaction
from tidemark.io.state.switching import Switched, Terms, switch
from tidemark.model.lsn import Lsn
from tidemark.model.position import Epoch, Pointer
from tidemark.runtime.daemon import stage_transition
from tidemark.runtime.daemon.node_requests import NodeRequests
from tidemark.runtime.daemon.stage_transition import Effects, perform
from tidemark.wire.marker import MarkerKind
from tidemark.wire.state.outbox_ledger import OutboxLedger
from tidemark.wire.state.state_keys import LEDGER

WRITTEN_S = 5.0


class SwitchTerms(Terms):
    """The arguments of `switch`."""

    log: Required[Log]
    now_us: Required[int]


def no_epoch_check() -> None:
    """Let the owner of an earlier epoch continue to write."""

    def check_nothing(_transaction: StateTransaction, _epoch: Epoch | None) -> None:
        return

    setattr(StateTransaction, "check_epoch", check_nothing)  # noqa: B010 - assigning it is no type


def trim_at_delivered() -> None:
    """Delete delivered values from the outbox before its readers have confirmed them."""
    apply_confirmations = StateTransaction.apply_confirmations

    def apply_and_trim(transaction: StateTransaction, hold_bytes: int = 0, wanted_bytes: int = 0) -> OutboxLedger:
        ledger = apply_confirmations(transaction, hold_bytes, wanted_bytes)
        trimmed = transaction.outbox.trim(ledger, ledger.head)
        transaction.put(LEDGER, trimmed)
        return trimmed

    setattr(StateTransaction, "apply_confirmations", apply_and_trim)  # noqa: B010 - assigning it is no type


def marker_before_state() -> None:
    """Write the markers of an operator's switch before the switch is durable."""
    write = NodeRequests.write

    def write_now(
        node_requests: NodeRequests,
        kind: MarkerKind,
        epoch: Epoch,
        pointer: Pointer | None,
        *,
        sequence: int = 0,
        reason: str = "",
    ) -> Future[Lsn]:
        written = write(node_requests, kind, epoch, pointer, sequence=sequence, reason=reason)
        wait([written], WRITTEN_S)
        return written

    late: list[Callable[[], Switched]] = []

    def only_decide(store: StateStore, event: Event, **terms: Unpack[SwitchTerms]) -> Switched:
        if event not in {Event.OPERATOR_OFF, Event.OPERATOR_ON}:
            return switch(store, event, **terms)
        marks = store.marks()
        found = move(marks.stage, event)
        late.append(partial(switch, store, event, **terms))
        return Switched(marks.stage, found.stage, found.effects, marks.term.epoch if marks.term else None, event.value)

    def effects_first(switched: Switched, effects: Effects) -> None:
        perform(switched, effects)
        while late:
            late.pop()()

    setattr(NodeRequests, "write", write_now)  # noqa: B010 - assigning it is no type
    setattr(stage_transition, "switch", only_decide)  # noqa: B010 - assigning it is no type
    setattr(stage_transition, "perform", effects_first)  # noqa: B010 - assigning it is no type


PLANTS: Mapping[str, Callable[[], None]] = {
    "no-epoch-check": no_epoch_check,
    "marker-before-state": marker_before_state,
    "trim-at-delivered": trim_at_delivered,
}


if __name__ == "__main__":
    program, plant, module, *arguments = sys.argv
    PLANTS[plant]()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=False)
