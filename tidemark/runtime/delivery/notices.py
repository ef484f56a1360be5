"""Reports losses and rewinds to a custom consumer at its start (`archive repair`, `rewind`).

Both happen while nothing is delivered. The state records a report after the call has returned. If the process is killed
between the call and the record, the next start repeats the report.
"""

from typing import Protocol, runtime_checkable

from tidemark.engine.ports import GroupConsumer
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_transaction import StateTransaction
from tidemark.model.position import Epoch
from tidemark.runtime.delivery.liveness import Liveness
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.state.event_logs import Loss, Notified, Rewind, unnotified_events
from tidemark.wire.state.key import DamagePolicy
from tidemark.wire.state.state_keys import NOTIFIED


@runtime_checkable
class NoticeConsumer(Protocol):
    """A consumer that receives losses and rewinds, between `on_assigned` and its first change."""

    def on_loss(self, loss: Loss) -> None:
        """Process a loss: changes that an operator gave up. They are never delivered."""

    def on_rewind(self, rewind: Rewind) -> None:
        """Process a rewind: delivered changes that are not in the node's history."""


def report_events(consumer: GroupConsumer, store: StateStore, epoch: Epoch, liveness: Liveness) -> None:
    """Call a `NoticeConsumer` for each event that is not recorded as reported, in order; raise what it raises."""
    if not isinstance(consumer, NoticeConsumer):
        return
    with store.reading() as transaction:
        losses, rewinds = transaction.losses(), transaction.rewinds()
        events = unnotified_events(losses, rewinds, _notified(transaction))
    for number, event in enumerate(events, 1):
        if isinstance(event, Loss):
            with liveness.calling("on_loss"):
                consumer.on_loss(event)
        else:
            with liveness.calling("on_rewind"):
                consumer.on_rewind(event)
        left = sum(isinstance(each, Loss) for each in events[number:])
        notified = Notified(losses.count - left, rewinds.count - (len(events) - number - left))
        with store.transaction(epoch) as transaction:
            transaction.put(NOTIFIED, notified)


def _notified(transaction: StateTransaction) -> Notified:
    """Return how many events were reported; none if the value is damaged, so that all are reported again."""
    try:
        return transaction.get(NOTIFIED) or Notified()
    except DamagedValue:
        assert NOTIFIED.policy is DamagePolicy.FORGET
        return Notified()
