"""Interning: common parts of descriptions are stored once, since many tables differ only in their names.

Descriptions refer to the interned parts for as long as they exist. The number of interned parts is bounded; beyond it
they are no longer shared.
"""

from collections.abc import Iterable

from tidemark.decode.catalog.transactions import Subject
from tidemark.model.relation import Column

KEPT_MAX = 4096  # of each kind; then all are dropped


class Interner:
    """Columns by their rows of pg_attribute without attrelid, and sets of subjects."""

    __slots__ = ("_columns", "_subjects")

    def __init__(self) -> None:
        self._columns: dict[bytes, Column] = {}
        self._subjects: dict[frozenset[Subject], frozenset[Subject]] = {}

    def column(self, row: bytes) -> Column | None:
        """Return the column that was made from such a row, with the type that it had then; None if there is none."""
        return self._columns.get(row)

    def keep_column(self, row: bytes, column: Column) -> None:
        """Store the column that was made from a row."""
        if len(self._columns) >= KEPT_MAX:
            self._columns.clear()
        self._columns[row] = column

    def subjects(self, subjects: Iterable[Subject]) -> frozenset[Subject]:
        """Return the interned set of subjects."""
        if len(self._subjects) >= KEPT_MAX:
            self._subjects.clear()
        found = frozenset(subjects)
        return self._subjects.setdefault(found, found)
