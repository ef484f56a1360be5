"""A target in front of another one, which gets other groups: transformed ones, or with events that were added."""

from collections.abc import Callable

from tidemark.model.change import ChangeGroup
from tidemark.runtime.delivery.delivery import CopyKeep, Target

Mapped = Callable[[ChangeGroup], ChangeGroup]


class MappedTarget:
    """Implements `Target` of `tidemark.runtime.delivery.delivery`."""

    def __init__(self, target: Target, *, streamed: Mapped, copied: Mapped) -> None:
        """`streamed`, `copied`: return what the target gets for a group of the stream, and for one of a first copy."""
        self.counts = target.counts
        self.begin = target.begin
        self.idle = target.idle
        self.drain = target.drain
        self.close = target.close
        self.abandon = target.abandon
        self._target = target
        self._streamed = streamed
        self._copied = copied

    def deliver(self, group: ChangeGroup) -> None:
        """Deliver what a group of the stream becomes."""
        self._target.deliver(self._streamed(group))

    def deliver_copied(self, group: ChangeGroup, progress: CopyKeep) -> None:
        """Deliver what a group of a first copy becomes."""
        self._target.deliver_copied(self._copied(group), progress)
