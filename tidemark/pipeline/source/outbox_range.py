"""The partitions of a range of the outbox."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from tidemark.model.position import Sequence as OutboxSequence
from tidemark.wire.values import ValueHeader

PARTITION_BYTES = 16 << 20  # a second partition costs 17 ms: worth it above this size
PARTITIONS_MAX = 16


@dataclass
class OutboxRange(InputPartition):
    """The values of (after, upto] of one outbox."""

    outbox: str
    after: int
    upto: int


def divide(
    outbox_id: str,
    after: OutboxSequence,
    upto: OutboxSequence,
    headers: Sequence[ValueHeader],
    wanted: Callable[[ValueHeader], bool],
) -> list[InputPartition]:
    """Divide a range into partitions of about `PARTITION_BYTES` of wanted values; none if no value is wanted."""
    sizes = [(header.sequence, header.payload_length) for header in headers if wanted(header)]
    if not sizes:
        return []
    total = sum(size for _, size in sizes)
    count = max(1, min(PARTITIONS_MAX, total // PARTITION_BYTES))
    cuts, filled = [after], 0
    for sequence, size in sizes:
        filled += size
        if filled * count >= total * len(cuts) and sequence < upto:
            cuts.append(sequence)
    ends = [*cuts[1:], upto]
    return [OutboxRange(outbox_id, a, b) for a, b in zip(cuts, ends, strict=True) if b > a]
