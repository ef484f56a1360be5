"""Positions of partitions that the hook `update_offsets` added: written in the delivered position's transaction."""

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.model.position import Partition, Position


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """The position of one partition."""

    partition: Partition
    position: Position


@dataclass(frozen=True, slots=True)
class PartitionPositions:
    """All of them, in the order of the partitions."""

    kept: tuple[PartitionPosition, ...] = ()

    @classmethod
    def of(cls, positions: Mapping[Partition, Position]) -> "PartitionPositions":
        """Return the stored form of positions."""
        return cls(tuple(PartitionPosition(partition, positions[partition]) for partition in sorted(positions)))

    @property
    def by_partition(self) -> Mapping[Partition, Position]:
        """The positions by partition."""
        return {each.partition: each.position for each in self.kept}
