"""What the descriptions of many relations have in common, held once: tables often differ in nothing but their names.

Descriptions hold what is given out here for as long as they are kept. What is kept here is bounded; beyond that it is
not shared any more.
"""

from collections.abc import Iterable

from tidemark.decode.catalog.transactions import Subject
from tidemark.model.relation import Column

KEPT_MAX = 4096  # of each sort; then all are forgotten


class Interner:
    """Columns by their rows of pg_attribute but for whose they are, and sets of subjects."""

    __slots__ = ("_columns", "_subjects")

    def __init__(self) -> None:
        self._columns: dict[bytes, Column] = {}
        self._subjects: dict[frozenset[Subject], frozenset[Subject]] = {}

    def column(self, row: bytes) -> Column | None:
        """Return the column that was made of such a row, with the type that it had then; None if none is kept."""
        return self._columns.get(row)

    def keep_column(self, row: bytes, column: Column) -> None:
        """Keep the column that was made of a row."""
        if len(self._columns) >= KEPT_MAX:
            self._columns.clear()
        self._columns[row] = column

    def subjects(self, subjects: Iterable[Subject]) -> frozenset[Subject]:
        """Return a set of subjects, the same one for the same."""
        if len(self._subjects) >= KEPT_MAX:
            self._subjects.clear()
        found = frozenset(subjects)
        return self._subjects.setdefault(found, found)
