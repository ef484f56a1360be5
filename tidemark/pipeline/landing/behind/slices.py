"""What the outbox keeps for a table that is behind the lake: its next items, and the bytes of all values since."""

from tidemark.model.position import NO_SEQUENCE
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.lake.positions.table_position import TableId
from tidemark.pipeline.landing.portions import ITEMS, PORTION_BYTES
from tidemark.pipeline.sinks.lake_batch import LakeItem
from tidemark.pipeline.source.outbox_port import OutboxPort
from tidemark.wire.values import HEADER_BYTES


def table_slice(
    outbox: OutboxPort, of: TableId, after: OutboxSequence, end: OutboxSequence
) -> tuple[list[LakeItem], OutboxSequence]:
    """Return the next items of a table after `after`, up to `end` at most, and the value up to which they are.

    Raises `OutboxTrimmed`.
    """
    if after >= end:
        return [], end
    upto = min(outbox.plan(after, PORTION_BYTES), end)
    items: list[LakeItem] = []
    for header in outbox.headers(after, upto):
        if header.kind in ITEMS and (header.database, header.relation) == of:
            values = outbox.read(OutboxSequence(header.sequence - 1), header.sequence)
            items += ((header.sequence, value.item()) for value in values)
    return items, upto


class KeptBytes:
    """Measures the values after one of the outbox; if the same one is measured again, only the new values."""

    def __init__(self, outbox: OutboxPort) -> None:
        self._outbox = outbox
        self._after = self._upto = NO_SEQUENCE
        self._bytes = 0

    def measure(self, after: OutboxSequence, upto: OutboxSequence) -> int:
        """Return the bytes of the values after `after` up to `upto`; raise `OutboxTrimmed` if they are not kept."""
        if after != self._after:
            self._after, self._upto, self._bytes = after, after, 0
        new = self._outbox.headers(self._upto, upto)
        self._upto = upto
        self._bytes += sum(HEADER_BYTES + header.payload_length for header in new)
        return self._bytes
