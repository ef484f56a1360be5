"""Tells a custom consumer of losses and rewinds at its start, before the next change (`archive repair`, `rewind`).

Both happen while nothing is delivered. An event is recorded as told when the call has returned: after a kill between
these two it is told again.
"""

from typing import Protocol, runtime_checkable

from tidemark.engine.ports import GroupConsumer
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_transaction import StateTransaction
from tidemark.model.position import Epoch
from tidemark.runtime.delivery.liveness import Liveness
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.state.event_logs import Loss, Notified, Rewind, untold
from tidemark.wire.state.key import DamagePolicy
from tidemark.wire.state.state_keys import NOTIFIED


@runtime_checkable
class NoticedConsumer(Protocol):
    """A consumer that is told of losses and rewinds, between `on_assigned` and its first change."""

    def on_loss(self, loss: Loss) -> None:
        """Learn that changes were given up: they are never delivered."""

    def on_rewind(self, rewind: Rewind) -> None:
        """Learn that delivered changes are not in the node's history."""


def tell(consumer: GroupConsumer, store: StateStore, epoch: Epoch, liveness: Liveness) -> None:
    """Call a `NoticedConsumer` for each event that it was not told of, in order; raise what it raises."""
    if not isinstance(consumer, NoticedConsumer):
        return
    with store.reading() as transaction:
        losses, rewinds = transaction.losses(), transaction.rewinds()
        events = untold(losses, rewinds, _told(transaction))
    for number, event in enumerate(events, 1):
        if isinstance(event, Loss):
            with liveness.calling("on_loss"):
                consumer.on_loss(event)
        else:
            with liveness.calling("on_rewind"):
                consumer.on_rewind(event)
        left = sum(isinstance(each, Loss) for each in events[number:])
        told = Notified(losses.count - left, rewinds.count - (len(events) - number - left))
        with store.transaction(epoch) as transaction:
            transaction.put(NOTIFIED, told)


def _told(transaction: StateTransaction) -> Notified:
    """Return how many events the consumer was told of; damaged: none, so that all are told again."""
    try:
        return transaction.get(NOTIFIED) or Notified()
    except DamagedValue:
        assert NOTIFIED.policy is DamagePolicy.FORGET
        return Notified()
