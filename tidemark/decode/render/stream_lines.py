"""The items of groups as lines in stream order: used by both JSON renderings.

Batches become parts of the stream whose lines share pieces of text (`placed_lines`); any other item becomes a line of
constant text at its position.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tidemark.decode.render.bounds import BoundForm, TransactionBounds, is_counted
from tidemark.decode.render.column_texts import Int64Array
from tidemark.decode.render.placed_lines import Lines, LineWriter, Placed, lines_of
from tidemark.model.change import ChangeBatch, ChangeGroup, GroupItem, LogicalMessage, Truncation


class StreamLines:
    """Converts groups to lines with `of_batch`, `of_item` and `bounds`; each line ends with a newline."""

    def __init__(
        self,
        of_batch: Callable[[ChangeBatch], Lines | None],
        of_item: Callable[[GroupItem, ChangeGroup], bytes],
        bounds: BoundForm,
    ) -> None:
        """`of_item` returns no text for an item without a line."""
        self._of_batch = of_batch
        self._of_item = of_item
        self._bounds = TransactionBounds(bounds)
        self._writer = LineWriter()

    def blocks(self, group: ChangeGroup) -> Iterator[memoryview]:
        """Yield the lines of a group in stream order, many at once; the memory is reused."""
        counted = is_counted(group)
        if counted:
            self._bounds.begin(group)
        rows: list[Lines] = []  # since the last barrier
        items: list[Placed] = []
        for item in group.items:
            if isinstance(item, ChangeBatch):
                lines = self._of_batch(item)
                rows += [lines] if lines is not None else []
                continue
            line = self._of_item(item, group)
            if isinstance(item, LogicalMessage | Truncation):
                items += [(item.position.commit_lsn, item.position.ordinal, line)] if line else []
                continue
            yield from self._in_order(rows, items, counted=counted)
            rows, items = [], [(item.position.commit_lsn, item.position.ordinal, line)] if line else []
            yield from self._in_order(rows, items, counted=counted)
            items = []
        yield from self._in_order(rows, items, counted=counted)
        if counted:
            yield from self._writer.blocks([*self._bounds.ends()])

    def _in_order(self, rows: Sequence[Lines], items: Sequence[Placed], *, counted: bool) -> Iterator[memoryview]:
        """Yield the lines between two barriers."""
        parts = [*rows, lines_of(items)] if items else [*rows]
        if counted:
            parts += self._bounds.of(_commit_lsns(parts))
        yield from self._writer.blocks(parts)


def _commit_lsns(parts: Sequence[Lines]) -> Int64Array:
    """Return the commit LSNs of all lines, in order."""
    return np.unique(np.concatenate([np.zeros(0, np.int64), *(part.shown_commit_lsns() for part in parts)]))
