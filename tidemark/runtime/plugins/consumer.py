"""The base class of consumers that a daemon runs as a plug-in; its name for users is `tidemark.Consumer`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemark.engine.pool.batch import Batch
from tidemark.model.change import EngineEvent
from tidemark.model.lsn import SystemIdentifier
from tidemark.model.position import Epoch, Partition, Position
from tidemark.serializers.serializer import SerializedBatch
from tidemark.wire.state.event_logs import Loss, Rewind

NO_PARTITION = Partition(SystemIdentifier(0))  # of a delivery that no capture made
DeliveredItem = Batch | SerializedBatch | EngineEvent
"""Changes of rows, or with a serializer their records, and what a stream contains beside them."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A part of the stream, in its order, with which a consumer is called."""

    items: Sequence[DeliveredItem]
    position: Position
    """Of the last change of the stream that was delivered; rows of a first copy do not move it."""
    partition: Partition = NO_PARTITION
    """The capture: the key of its position in `Consumer.update_offsets`."""


class Consumer(ABC):
    """Receives the changes of a capture in the sidecar, and after a failover in the archiver: at least once, in order.

    One thread makes all calls except `alive`: `on_assigned`, (`on_loss` | `on_rewind`)..., (`on_delivery` |
    `update_offsets`)..., `on_revoked`, `stop`; a last `update_offsets` may follow `on_revoked`. The parameters of the
    constructor are the keys of the section `[consumer]` in tidemark.toml, with their types. It keeps them and does not
    open anything, because a daemon also calls it to check the section. `version` names the version in the log and in
    `cdcctl status`; by default it is that of the package.
    """

    version = ""

    @abstractmethod
    def on_assigned(self, epoch: Epoch, start: Position) -> None:
        """Open the target. Everything up to `start` was confirmed, except rows of a first copy.

        `epoch` is the fencing token: greater at each start, in both daemons. A target that refuses a smaller one is
        safe from a process that was replaced and still runs.
        """

    @abstractmethod
    def on_delivery(self, delivery: Delivery) -> bool:
        """Write a part of the stream. True confirms it and everything before it; false leaves it unconfirmed.

        What is not confirmed is delivered again after a restart, possibly divided differently; at
        `deliver.unconfirmed_bytes_max` delivery waits. While something is unconfirmed and nothing arrives, the method
        is called without items, so that it can confirm. After an error it is called again with the same part,
        `deliver.retries_max` times; then `poison.policy` decides. A `tidemark.ConsumerFailed` that it raises is final
        at once.
        """

    def on_loss(self, loss: Loss) -> None:  # noqa: B027 - optional
        """Handle that changes were given up (`cdcctl archive repair`): those between `after` and `resumed_lsn`.

        Called once for each loss, after `on_assigned` and before the next change; after an error, or a kill during the
        call, again at the next start. By default nothing is done.
        """

    def on_rewind(self, rewind: Rewind) -> None:  # noqa: B027 - optional
        """Handle that delivered changes are not in the node's history (`cdcctl rewind`): from `fork_lsn` on.

        Called like `on_loss`. A consumer that can removes them; the tables are copied again.
        """

    def update_offsets(self, positions: Mapping[Partition, Position]) -> Mapping[Partition, Position] | None:
        """Change the positions to be stored; called once before each commit round, if a class overrides it.

        `positions` has the newest position of each partition: the capture, `Partition(system_identifier)`, and those
        that earlier calls added. The answer may add partitions, and may advance positions: never back, and never to a
        change that is not acknowledged (`OffsetsRefused`). A partition that it leaves out stays stored, with a
        warning. None and an empty mapping change nothing. All of it is stored in one transaction.
        """
        del positions
        return None

    def on_revoked(self) -> bool:
        """Write what is buffered: the last opportunity to confirm. By default nothing is confirmed."""
        return False

    def alive(self) -> bool:
        """Return whether the consumer can continue, at once. Any thread calls it, also during another call."""
        return True

    def stop(self) -> None:
        """Close the target; called once, also after an error. By default nothing is done."""
        return
