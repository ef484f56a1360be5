"""The base class of handlers that the pool of a daemon calls; its name for users is `tidemark.Handler`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, TypeVar

from tidemark.engine.pool.batch import Batch
from tidemark.model.change import EngineEvent
from tidemark.model.position import Partition, Position
from tidemark.serializers.serializer import SerializedBatch
from tidemark.wire.state.event_logs import Loss, Rewind

UNIT_contra = TypeVar("UNIT_contra", Batch, SerializedBatch, contravariant=True)


class Handler(ABC, Generic[UNIT_contra]):
    """Handles the changes of a capture in the sidecar, and after a failover in the archiver, by the workers of a pool.

    `Handler[Batch]`, or with `deliver.serializer` `Handler[SerializedBatch]`. The section `[pool]` of tidemark.toml has
    the number of workers, whether they are threads or processes, and the order. Each batch is handled at least once.
    With threads, all workers share one object for each capture; with processes, each worker has a copy of one that was
    never called. The parameters of the constructor are the keys of the section `[consumer]`, with their types. It keeps
    them and opens nothing: open the target at the first call. `version` names the version in the log and in
    `cdcctl status`; by default it is that of the package.
    """

    version = ""

    @abstractmethod
    def handle(self, batch: UNIT_contra) -> None:
        """Write a batch: changes of one version of one table. When it returns, the batch is finished.

        Several threads call it, if there are so many. After an error it is called again with the same batch,
        `deliver.retries_max` times; then `poison.policy` decides. A `tidemark.ConsumerFailed` that it raises is final
        at once. `batch.epoch` is the fencing token: greater at each start, in both daemons.
        """

    def on_event(self, event: EngineEvent) -> None:
        """Handle an item that is not a row change, after everything before it is finished. In the daemon's own process.

        Without this method, such items (TRUNCATE and others) are left out, with a warning for the first of each kind.
        """

    def on_loss(self, loss: Loss) -> None:
        """Handle that changes were given up, like `Consumer.on_loss`. In the daemon's own process."""

    def on_rewind(self, rewind: Rewind) -> None:
        """Handle that delivered changes are not in the node's history, like `Consumer.on_rewind`."""

    def update_offsets(self, positions: Mapping[Partition, Position]) -> Mapping[Partition, Position] | None:
        """Change the positions to be stored, like `Consumer.update_offsets`. In the daemon's own process."""
        del positions
        return None

    def stop(self) -> None:
        """Close the target: called once when the pool has ended, and at the end of each worker process."""


AnyHandler = Handler[Batch] | Handler[SerializedBatch]
