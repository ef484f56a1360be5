"""A plug-in as a consumer of groups: groups become batches, with transforms and a serializer records of batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidemark.engine.offset_update import OffsetsHook
from tidemark.engine.pool.batch import Batch
from tidemark.engine.pool.poison import CallPart, CallParts, PartItem
from tidemark.engine.ports import Clock
from tidemark.model.change import ChangeBatch, ChangeGroup, GroupItem, SchemaEvent, TransactionBoundary
from tidemark.model.commit_time import NSECS_PER_USEC
from tidemark.model.errors import ConsumerFailed
from tidemark.model.position import Epoch, Partition, Pointer, Position
from tidemark.runtime.plugins.consumer import NO_PARTITION, Consumer, DeliveredItem, Delivery
from tidemark.runtime.plugins.group_transforms import GroupTransforms
from tidemark.runtime.plugins.poison_handling import ParkedRetries, PoisonHandling
from tidemark.runtime.plugins.transaction_boundaries import TransactionBoundaries
from tidemark.serializers.serializer import Serializer
from tidemark.wire.state.event_logs import Loss, Rewind


@dataclass(slots=True)
class _DrawnGroup:
    """The group that was read last, and its remaining part."""

    group: ChangeGroup
    parts: CallParts
    moves_position: bool  # a group of a first copy has the position before it
    confirms: bool | None = None  # the answer to the last part; None: there is none since something was left out


class PluginConsumer:
    """Implements `PoisonConsumer` and `OffsetsConsumer` of `tidemark.engine.ports`.

    A call gets one group, so that an error repeats only this one.
    """

    def __init__(
        self,
        plugin: Consumer,
        transforms: GroupTransforms,
        serializer: Serializer | None,
        clock: Clock,
        *,
        poison: PoisonHandling | None = None,
        retries: ParkedRetries | None = None,
    ) -> None:
        """`poison`, `retries`: what becomes of a change that the plug-in cannot handle; None: it fails."""
        self.plugin = plugin
        self._transforms = transforms
        self._serializer = serializer
        self._clock = clock
        self._poison = poison
        self._retries = retries
        self._partition = NO_PARTITION
        self._position: Position | None = None  # of the last group that was drawn, or of the start
        self._pending: _DrawnGroup | None = None
        self._boundaries = TransactionBoundaries()

    def on_assigned(self, partition: Partition, epoch: Epoch, start: Pointer | None) -> None:
        """Assign the capture to the plug-in."""
        assert start is not None, "a capture has a start"
        self._partition, self._position = partition, start.position
        self.plugin.on_assigned(epoch, start.position)

    def on_loss(self, loss: Loss) -> None:
        """Report a loss to the plug-in."""
        self.plugin.on_loss(loss)

    def on_rewind(self, rewind: Rewind) -> None:
        """Report a rewind to the plug-in."""
        self.plugin.on_rewind(rewind)

    def on_schema(self, event: SchemaEvent) -> None:
        """Check that the transforms fit the version: each batch has its relation, and needs no more."""
        self._transforms.check_event(event)

    def on_events(self, groups: Iterator[ChangeGroup]) -> bool | ChangeGroup:
        """Deliver one group; without one, let the plug-in confirm. Unrecorded poison is not confirmed."""
        group = next(groups, None)
        if group is None:
            if self._poison is not None:
                self._poison.settle_silence()
            return self._answered(self._deliver((), self._last_position))
        if self._pending is None or self._pending.group is not group:
            self._transforms.learn(group)
            items = tuple(part for item in self._boundaries.around(group) for part in self._parts(item))
            moves = group.last.position != self._position
            self._pending = _DrawnGroup(group, CallParts(items), moves)
            self._position = group.last.position
        return self._answered(self._deliver_left(self._pending))

    @property
    def update_offsets(self) -> OffsetsHook | None:
        """The hook of commit rounds, if the plug-in has one."""
        has_own = type(self.plugin).update_offsets is not Consumer.update_offsets
        return self.plugin.update_offsets if has_own else None

    @property
    def needs_more(self) -> bool:
        """Return whether a change that failed waits for the next success."""
        return self._poison is not None and self._poison.needs_success

    def isolate(self, error: Exception) -> bool:
        """Narrow down to the change that the plug-in cannot handle, and leave it out."""
        pending = self._pending
        if self._poison is None or not self._poison.isolates or pending is None:
            return False
        if not pending.parts.can_isolate(error):
            return False
        found = pending.parts.isolate(error)
        if found is not None:
            self._poison.leave_out(found, error)
            pending.confirms = None
        return True

    def retry_parked(self) -> bool:
        """Deliver a parked change again, once; it stays in the table until the plug-in has confirmed it."""
        parked = None if self._retries is None else self._retries.next_due()
        if self._retries is None or parked is None:
            return False
        try:
            confirms = self._deliver((parked.batch,), self._last_position)
        except Exception as error:  # noqa: BLE001 - the plug-in's own: the operator asked whether it can handle it now
            self._retries.failed(parked, error)
        else:
            self._retries.delivered(parked)
            self._answered(confirms)
        return True

    @property
    def is_retrying(self) -> bool:
        """Return whether the plug-in has yet to confirm a change that it got again."""
        return self._retries is not None and self._retries.is_waiting

    def on_revoked(self, partition: Partition) -> bool | ChangeGroup | None:
        """Revoke the capture from the plug-in."""
        del partition
        return self._answered(self.plugin.on_revoked())

    def alive(self) -> bool:
        """Return whether the plug-in can continue."""
        return self.plugin.alive()

    def stop(self) -> None:
        """Stop the plug-in."""
        self.plugin.stop()

    @property
    def _may_confirm(self) -> bool:
        return self._poison is None or self._poison.may_confirm

    @property
    def _last_position(self) -> Position:
        assert self._position is not None, "it was never assigned"
        return self._position

    def _deliver_left(self, pending: _DrawnGroup) -> bool:
        """Deliver the remaining part of a group; return whether the plug-in confirms it."""
        parts = pending.parts
        while (part := parts.first) is not None:
            found = 0 if self._poison is None else self._poison.found
            try:
                pending.confirms = self._deliver(part.items, self._position_of(pending, part))
            except Exception as error:
                if not parts.narrow(error):
                    raise
            else:
                parts.finish()
                if self._poison is not None and part.has_changes:
                    self._poison.handled(found)
        if pending.confirms is None:
            pending.confirms = self._deliver((), self._last_position)
        return pending.confirms

    def _deliver(self, items: Sequence[PartItem], position: Position) -> bool:
        made = [self._serialized(item) if isinstance(item, Batch) else item for item in items]
        confirms = self.plugin.on_delivery(Delivery(made, position, self._partition))
        if not isinstance(confirms, bool):
            raise ConsumerFailed(
                f"{type(self.plugin).__name__}.on_delivery returned {type(confirms).__name__}",
                hint="it returns true to confirm, or false",
            )
        return confirms

    def _answered(self, confirms: bool) -> bool:  # noqa: FBT001 - the answer of a plug-in
        """Delete the retried changes that an answer confirms; return whether it confirms groups."""
        if confirms and self._retries is not None:
            self._retries.confirmed()
        return confirms and self._may_confirm

    def _position_of(self, pending: _DrawnGroup, part: CallPart) -> Position:
        """Return the position of a part: that of the group if it ends the group, or if the group moves none."""
        if pending.parts.is_last or not pending.moves_position:
            return self._last_position
        return part.items[-1].position

    def _parts(self, item: GroupItem | TransactionBoundary) -> Sequence[PartItem]:
        return self._transforms.batches(item) if isinstance(item, ChangeBatch) else (self._transforms.event(item),)

    def _serialized(self, batch: Batch) -> DeliveredItem:
        if self._serializer is None:
            return batch
        return self._serializer.serialized(batch, self._clock.wall_us() * NSECS_PER_USEC)
