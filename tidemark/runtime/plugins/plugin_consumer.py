"""A plug-in as a consumer of groups: groups become batches, with transforms and a serializer records of batches."""

from collections.abc import Iterator, Sequence

from tidemark.engine.batch import Batch
from tidemark.engine.ports import Clock
from tidemark.model.change import ChangeBatch, ChangeGroup, GroupItem, SchemaEvent
from tidemark.model.commit_time import NSECS_PER_USEC
from tidemark.model.errors import ConsumerFailed
from tidemark.model.position import Epoch, Partition, Pointer
from tidemark.runtime.plugins.consumer import Consumer, DeliveredItem, Delivery
from tidemark.runtime.plugins.group_transforms import GroupTransforms
from tidemark.serializers.serializer import Serializer


class PluginConsumer:
    """Implements `GroupConsumer` of `tidemark.engine.ports`.

    A call gets one group, so that an error repeats only this one.
    """

    def __init__(
        self, plugin: Consumer, transforms: GroupTransforms, serializer: Serializer | None, clock: Clock
    ) -> None:
        self.plugin = plugin
        self._transforms = transforms
        self._serializer = serializer
        self._clock = clock
        self._last: ChangeGroup | None = None  # the last group that was drawn

    def on_assigned(self, partition: Partition, epoch: Epoch, start: Pointer | None) -> None:
        """Assign the capture to the plug-in."""
        del partition
        assert start is not None, "a capture has a start"
        self.plugin.on_assigned(epoch, start.position)

    def on_schema(self, event: SchemaEvent) -> None:
        """Check that the transforms fit the version: each batch has its relation, and needs no more."""
        self._transforms.check_event(event)

    def on_events(self, groups: Iterator[ChangeGroup]) -> bool | ChangeGroup:
        """Deliver one group; without one, let the plug-in confirm."""
        group = next(groups, None)
        self._last = group or self._last
        assert self._last is not None, "it is polled for groups that it drew"
        items: Sequence[DeliveredItem] = ()
        if group is not None:
            self._transforms.learn(group)
            items = [part for item in group.items for part in self._parts(item)]
        confirms = self.plugin.on_delivery(Delivery(items, self._last.last.position))
        if not isinstance(confirms, bool):
            raise ConsumerFailed(
                f"{type(self.plugin).__name__}.on_delivery returned {type(confirms).__name__}",
                hint="it returns true to confirm, or false",
            )
        return confirms

    def on_revoked(self, partition: Partition) -> bool | ChangeGroup | None:
        """Revoke the capture from the plug-in."""
        del partition
        return self.plugin.on_revoked()

    def alive(self) -> bool:
        """Return whether the plug-in can continue."""
        return self.plugin.alive()

    def stop(self) -> None:
        """Stop the plug-in."""
        self.plugin.stop()

    def _parts(self, item: GroupItem) -> Iterator[DeliveredItem]:
        if not isinstance(item, ChangeBatch):
            yield self._transforms.event(item)
            return
        for batch in self._transforms.batches(item):
            yield self._serialized(batch)

    def _serialized(self, batch: Batch) -> DeliveredItem:
        if self._serializer is None:
            return batch
        return self._serializer.serialized(batch, self._clock.wall_us() * NSECS_PER_USEC)
