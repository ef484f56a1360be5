"""The answer of the hook `update_offsets` (KIP-910), checked against what may be stored.

Before a commit round the hook gets the newest position of each partition. It may advance a position in the gap before
the first change that is not acknowledged, and it may add partitions. Nothing moves back: the prefix rule of
delivery is stronger than the hook.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidemark.model.errors import ConsumerFailed
from tidemark.model.position import Partition, Position

PARTITIONS_MAX = 1000  # that a hook may add: each commit writes them again

PartitionOffsets = Mapping[Partition, Position]
OffsetsHook = Callable[[PartitionOffsets], PartitionOffsets | None]


class OffsetsRefused(ConsumerFailed):
    """Positions of `update_offsets` that are not stored: one moves back, or passes the acknowledged position."""

    hint = (
        "update_offsets returns positions from the one that it got up to the first change that is not acknowledged; "
        "nothing of this round is stored"
    )


@dataclass(frozen=True, slots=True)
class OffsetLimits:
    """What a commit round would store, and what limits the hook."""

    own: Partition
    position: Position  # of the own partition: everything up to it is acknowledged
    added: PartitionOffsets  # of other partitions, as they are stored
    unacknowledged: Position | None  # the first change that is delivered and not acknowledged; None: not known

    @property
    def positions(self) -> PartitionOffsets:
        """The newest position of each partition."""
        return {**self.added, self.own: self.position}


@dataclass(frozen=True, slots=True)
class OffsetUpdate:
    """The positions to store."""

    position: Position
    added: PartitionOffsets
    dropped: frozenset[Partition]  # left out by the hook, and stored all the same


def updated_offsets(limits: OffsetLimits, answer: PartitionOffsets | None) -> OffsetUpdate:
    """Return what to store after the hook's answer, or raise `OffsetsRefused`. None and {} change nothing."""
    known = limits.positions
    if not answer:
        return OffsetUpdate(limits.position, limits.added, frozenset())
    if not isinstance(answer, Mapping):
        raise OffsetsRefused(f"update_offsets returned {type(answer).__name__}, which is neither a mapping nor None")
    for partition, position in answer.items():
        _check(limits, partition, position, known.get(partition) if isinstance(partition, Partition) else None)
    stored = {**known, **answer}
    if len(stored) > 1 + PARTITIONS_MAX:
        raise OffsetsRefused(f"update_offsets added {len(stored) - 1} partitions: at most {PARTITIONS_MAX} are stored")
    position = stored.pop(limits.own)
    return OffsetUpdate(position, stored, frozenset(known.keys() - answer.keys()))


def _check(limits: OffsetLimits, partition: object, position: object, known: Position | None) -> None:
    if not isinstance(partition, Partition) or not isinstance(position, Position):
        raise OffsetsRefused(
            f"update_offsets returned {type(partition).__name__} with {type(position).__name__}: "
            "it must return Partition with Position"
        )
    if known is not None and position < known:
        raise OffsetsRefused(f"update_offsets moves {partition} back from {known} to {position}")
    if partition.system_identifier != limits.own.system_identifier or position == known:
        return  # the application's own stream
    if position.timeline != limits.position.timeline:
        raise OffsetsRefused(
            f"update_offsets moves {partition} from {limits.position} to {position}, on another timeline"
        )
    is_acknowledged = position <= limits.position
    is_in_gap = limits.unacknowledged is not None and position < limits.unacknowledged
    if not (is_acknowledged or is_in_gap):
        first = f"the next change is {limits.unacknowledged}" if limits.unacknowledged else "no later change is known"
        raise OffsetsRefused(
            f"update_offsets moves {partition} to {position}: {limits.position} is acknowledged, and {first}"
        )
