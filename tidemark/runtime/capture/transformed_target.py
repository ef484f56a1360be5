"""Transforms before a target that takes groups in the form of tables: the outbox, and the built-in consumers."""

from tidemark.model.change import ChangeGroup
from tidemark.runtime.capture.delivery import CopyKeep, Target
from tidemark.runtime.plugins.group_transforms import GroupTransforms


class TransformedTarget:
    """Implements `Target` of `tidemark.runtime.capture.delivery` in front of another one."""

    def __init__(self, target: Target, transforms: GroupTransforms) -> None:
        self.counts = target.counts
        self.begin = target.begin
        self.idle = target.idle
        self.drain = target.drain
        self.close = target.close
        self.abandon = target.abandon
        self._target = target
        self._transforms = transforms

    def deliver(self, group: ChangeGroup) -> None:
        """Deliver a group after its transforms."""
        self._target.deliver(self._transforms.apply(group))

    def deliver_copied(self, group: ChangeGroup, progress: CopyKeep) -> None:
        """Deliver a group of a first copy after its transforms."""
        self._target.deliver_copied(self._transforms.apply(group), progress)
