"""The ports of the engine: declared here by their user, implemented in `tidemark.io` and `tidemark.runtime`."""

from collections.abc import Iterator
from typing import Protocol

from tidemark.model.change import ChangeGroup, SchemaEvent
from tidemark.model.position import Epoch, Partition, Pointer


class Clock(Protocol):
    """Time, as an interface."""

    def monotonic_s(self) -> float:
        """Return seconds on a clock that never goes back."""

    def wall_us(self) -> int:
        """Return microseconds since 1970-01-01 UTC."""


class Consumer(Protocol):
    """Who takes the changes (I34 to I36, I39).

    All of it but `alive` is called by one thread, the application thread, and nothing after `stop` has returned. The
    calls for a partition come in the order `on_assigned`, (`on_schema` | `on_events`)*, `on_revoked`. A call may
    take `deliver.hang_s`; a consumer that is in one for longer counts as hung, and capture stops.
    """

    def on_assigned(self, partition: Partition, epoch: Epoch, start: Pointer | None) -> None:
        """Take over a partition from `start` on; `epoch` is the fencing token for the consumer's own target."""

    def on_schema(self, event: SchemaEvent) -> None:
        """Learn of a relation version: once, before the first change that needs it, and again after a restart."""

    def on_events(self, groups: Iterator[ChangeGroup]) -> bool:
        """Take groups from the iterator, all or some. True confirms what was taken, false goes on unconfirmed.

        What is confirmed becomes durable behind the call, while the next groups come: a crash may bring it again.
        Nothing is taken for confirmed that was not drawn from the iterator.

        After an error the call is repeated, `deliver.retries_max` times with back-off, and what it drew before it
        raised comes again; groups of earlier calls do not. An error is final at once if it is one of Tidemark's own
        whose disposition is not RETRY, as `ConsumerFailed`.
        """

    def on_revoked(self, partition: Partition) -> bool | None:
        """Give a partition back. True confirms all that was taken: the last chance to do so.

        It may take `deliver.stop_s` together with the batch in hand; a confirmation that comes later has no effect.
        """

    def alive(self) -> bool:
        """Tell if the consumer can go on. Asked by any thread at any time, also while `on_events` runs.

        It must answer at once, without waiting for a lock that `on_events` holds: after `deliver.alive_s` without an
        answer the consumer counts as dead, as after a false one, and capture stops.
        """

    def stop(self) -> None:
        """Let go of everything; called once, never during `on_events`."""
