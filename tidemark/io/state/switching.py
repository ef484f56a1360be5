"""Makes a transition of the stage table durable: one transaction that checks the epoch of the decision (I12, I21).

Values that belong to the transition (a new epoch, the hand-over record) are written in the same transaction. The
effects are returned; the caller performs them afterwards.
"""

from dataclasses import dataclass
from typing import TypedDict

from tidemark.engine.handover import Effect, Event, move
from tidemark.io.host.logs import Log
from tidemark.io.state.state import StateStore
from tidemark.model.errors import Fenced
from tidemark.model.mode import Stage
from tidemark.model.position import Epoch
from tidemark.wire.state.event_logs import Switch
from tidemark.wire.state.process_log import Owner
from tidemark.wire.state.state_keys import FOLLOWED, HAND_OVER, STAGE
from tidemark.wire.state.values import Followed, HandOver


@dataclass(frozen=True, slots=True)
class Switched:
    """A durable transition."""

    before: Stage
    after: Stage
    effects: tuple[Effect, ...]
    epoch: Epoch | None  # the current one, after the transition
    reason: str


class Terms(TypedDict, total=False):
    """The conditions of a transition, and the values written with it; see `switch`."""

    epoch: Epoch | None
    new_owner: Owner | None
    hand_over: HandOver | None
    only_from: Stage | None
    reason: str


def switch(
    store: StateStore,
    event: Event,
    *,
    log: Log,
    now_us: int,
    epoch: Epoch | None = None,
    new_owner: Owner | None = None,
    hand_over: HandOver | None = None,
    only_from: Stage | None = None,
    reason: str = "",
) -> Switched:
    """Make the transition for `event`; raise `Refused`, with nothing written, if the table has no such transition.

    `epoch`: of the caller, which fails if it is over. `new_owner`: owns a new epoch that begins here. `only_from`: the
    stage in which the event was observed; raises `Fenced` if the stage has changed since.
    """
    with store.transaction(epoch) as transaction:
        before = transaction.stage()
        if only_from is not None and before is not only_from:
            raise Fenced(f"the stage is now {before.value}, no longer {only_from.value}", hint="see `cdcctl status`")
        found = move(before, event)
        transaction.put(STAGE, found.stage)
        if hand_over is not None:
            transaction.put(HAND_OVER, hand_over)
        taken = transaction.take_confirmation() if new_owner is not None else None
        delivered = transaction.delivered()
        # NB: if the start was not found yet, `followed` is still stored; nothing has been delivered since.
        if found.stage is Stage.FOLLOWER and transaction.followed() is None:
            # The follower continues from what was delivered here, unless markers of others show a later position.
            assert delivered is not None, "it has delivered, or was to"
            transaction.put(FOLLOWED, Followed(delivered.pointer, delivered.pointer, has_start=True))
        if new_owner is not None:
            epoch = transaction.begin_epoch(new_owner)
        elif (term := transaction.term()) is not None:
            epoch = term.epoch
        why = reason or event.value
        delivered_text = str(delivered.pointer.position) if delivered else ""
        if before is not found.stage:
            transaction.record_switch(Switch(now_us, before, found.stage, why, epoch, delivered_text))
    if new_owner is not None:
        store.read_versions()
    if taken is not None:
        taken.report(log)
    if before is not found.stage:
        log.info(
            "mode switched",
            before=before.value,
            after=found.stage.value,
            reason=why,
            epoch=str(epoch) if epoch else None,
            delivered=delivered_text or None,
        )
    return Switched(before, found.stage, found.effects, epoch, why)
