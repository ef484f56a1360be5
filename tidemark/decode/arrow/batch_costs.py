"""What batches take beside their rows, counted before they are built: of few rows in many tables that is nearly all.

As long as there are not many tables it is next to nothing, and no row is looked at for it.
"""

from array import array

from tidemark.decode.datum.row_entries import meet
from tidemark.model.relation import Relation

BATCH_BYTES = 1300  # head and smallest body of a message without columns, and the objects around it
COLUMN_BYTES = 120  # of a column there: two nodes and some five buffers, of 16 bytes each
NO_END = 1 << 62


def batch_bytes(relation: Relation) -> int:
    """Return what a batch takes beside its rows, about."""
    return BATCH_BYTES + COLUMN_BYTES * len(relation.columns)


class MetVersions:
    """The relation versions that some rows are of, where there are so many that it counts."""

    __slots__ = ("_costs", "_met", "byte_count")

    def __init__(self, costs: "array[int]") -> None:
        """`costs` are what a batch of each version takes; they may become more."""
        self._costs = costs
        self._met = bytearray()
        self.byte_count = 0  # what a batch of each takes beside rows

    def take(self, entries: bytes | bytearray, start: int, stop: int) -> None:
        """Note the versions of some entries."""
        self._know_all()
        total = array("q", [self.byte_count])
        meet(entries, start, stop, self._costs, self._met, total, NO_END)
        self.byte_count = total[0]

    def within(self, entries: bytes | bytearray, start: int, stop: int, most: int) -> int:
        """Return the entry up to which batches of all take no more than `most`, the one that passes it included."""
        self._know_all()
        return meet(entries, start, stop, self._costs, bytearray(self._met), array("q", [self.byte_count]), most)

    def _know_all(self) -> None:
        self._met += bytes(len(self._costs) - len(self._met))
