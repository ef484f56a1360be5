"""Estimates the fixed size of batches, without their rows, before they are built: many tables with few rows need it.

With few tables the fixed size is negligible, and no row is inspected for it.
"""

from array import array

from tidemark.decode.datum.row_entries import add_costs
from tidemark.model.relation import Relation

BATCH_BYTES = 1300  # head and smallest body of a message without columns, and its Python objects
COLUMN_BYTES = 120  # for each column: two nodes and about five buffer descriptors of 16 bytes
NO_END = 1 << 62


def batch_bytes(relation: Relation) -> int:
    """Return the approximate fixed size of a batch."""
    return BATCH_BYTES + COLUMN_BYTES * len(relation.columns)


class VersionCosts:
    """The fixed size of the batches of some rows, each version counted once; used only if there are many versions."""

    __slots__ = ("_costs", "_counted", "byte_count")

    def __init__(self, costs: "array[int]") -> None:
        """`costs` has the fixed size of each version's batch; the array may grow."""
        self._costs = costs
        self._counted = bytearray()
        self.byte_count = 0  # fixed size of one batch for each version

    def add(self, entries: bytes | bytearray, start: int, stop: int) -> None:
        """Record the versions of some entries."""
        self._grow()
        total = array("q", [self.byte_count])
        add_costs(entries, start, stop, self._costs, self._counted, total, NO_END)
        self.byte_count = total[0]

    def within(self, entries: bytes | bytearray, start: int, stop: int, most: int) -> int:
        """Return the end of the entries whose batches have `most` bytes, the last entry included; or `stop`."""
        self._grow()
        return add_costs(
            entries, start, stop, self._costs, bytearray(self._counted), array("q", [self.byte_count]), most
        )

    def _grow(self) -> None:
        self._counted += bytes(len(self._costs) - len(self._counted))
