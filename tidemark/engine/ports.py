"""The ports of the engine: declared here by their user, implemented in `tidemark.io` and `tidemark.runtime`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tidemark.engine.offset_update import OffsetsHook
from tidemark.engine.progress import Progress
from tidemark.model.change import ChangeGroup, SchemaEvent
from tidemark.model.position import Epoch, Partition, Pointer


class Clock(Protocol):
    """The clock, as a port."""

    def monotonic_s(self) -> float:
        """Return seconds of a clock that never goes back."""

    def wall_us(self) -> int:
        """Return microseconds since 1970-01-01 UTC."""


@dataclass(frozen=True, slots=True)
class GroupPart:
    """The first part of a group, as an answer of a consumer that takes no more: the rest comes after a restart."""

    whole: ChangeGroup  # as it was drawn
    part: ChangeGroup


class GroupConsumer(Protocol):
    """The receiver of changes (I34 to I36, I39).

    One thread, the application thread, makes all calls except `alive`, and none after `stop` has returned. The calls
    for a partition come in the order `on_assigned`, (`on_schema` | `on_events`)*, `on_revoked`. A call may take
    `deliver.hang_s`; a consumer whose call takes longer counts as hung, and capture stops.
    """

    def on_assigned(self, partition: Partition, epoch: Epoch, start: Pointer | None) -> None:
        """Start to receive a partition from `start`; `epoch` is the fencing token for the consumer's target."""

    def on_schema(self, event: SchemaEvent) -> None:
        """Receive a relation version: once, before the first change that needs it, and again after a restart."""

    def on_events(self, groups: Iterator[ChangeGroup]) -> bool | ChangeGroup | GroupPart:
        """Process groups from the iterator, all or some. True confirms the groups drawn, false leaves them unconfirmed.

        A group that was drawn, in this call or an earlier one, confirms that group and all before it; a part of it
        confirms that part.

        Confirmation becomes durable after the call, while the next groups come: after a crash they may be repeated.
        Groups that were not drawn from the iterator are never confirmed.

        After an error the call is repeated, `deliver.retries_max` times with back-off, with the groups that it drew
        before the error, but not those of earlier calls. An error of Tidemark whose disposition is not RETRY, such as
        `ConsumerFailed`, is final at once.
        """

    def on_revoked(self, partition: Partition) -> bool | ChangeGroup | GroupPart | None:
        """Stop receiving a partition. True or a group confirms as in `on_events`: the last opportunity for it.

        It may take `deliver.stop_s` together with the current batch; a later confirmation has no effect.
        """

    def alive(self) -> bool:
        """Return whether the consumer can continue. Any thread can call it at any time, also during `on_events`.

        It must return at once, without waiting for a lock that `on_events` holds: if it returns false, or does not
        return within `deliver.alive_s`, the consumer counts as dead, and capture stops.
        """

    def stop(self) -> None:
        """Release all resources; called once, never during `on_events`."""


@runtime_checkable
class PoisonConsumer(GroupConsumer, Protocol):
    """A consumer that can leave a change out which it cannot handle. The application thread makes these calls too."""

    @property
    def needs_more(self) -> bool:
        """Return whether it confirms nothing before a further change is handled: its bound of bytes does not apply."""

    def isolate(self, error: Exception) -> bool:
        """After the last retry of `on_events`: narrow down to the change that fails, or leave it out.

        Return false if the error is final. After true, `on_events` is called again with the same groups and continues.
        """

    def retry_parked(self) -> bool:
        """Process the next parked change again that an operator requested; return whether there was one."""

    @property
    def is_retrying(self) -> bool:
        """Return whether it has yet to confirm one of these changes."""


@runtime_checkable
class OffsetsConsumer(GroupConsumer, Protocol):
    """A consumer that may have the hook of commit rounds (U04)."""

    @property
    def update_offsets(self) -> OffsetsHook | None:
        """The hook: called once before each commit round, by the application thread; None: there is none."""


@runtime_checkable
class PausingConsumer(GroupConsumer, Protocol):
    """A consumer that may take no groups for a time, or none before the capture is stopped."""

    @property
    def takes_nothing(self) -> bool:
        """Return whether it takes no groups now: to refuse them is no error then."""


@runtime_checkable
class DrainedConsumer(GroupConsumer, Protocol):
    """A consumer that handles changes after `on_events` has returned, in other threads."""

    def drain(self, within_s: float, progress: Progress) -> None:
        """Finish what it was given within a time, take nothing more, and wait until all that is finished is stored.

        The capture calls it before it stops, from a thread of its owner, while the application thread still calls
        `on_events`, by which it confirms. `progress`: of the capture.
        """
