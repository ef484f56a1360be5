"""The rows on heap pages that a snapshot sees which was taken after all known transactions ended, or never end."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidemark.decode.catalog.heap import OFFSET_MASK
from tidemark.decode.catalog.rewrite import Ends, copied_rows
from tidemark.decode.catalog.seeding.commit_log import CommitLog, Multixacts
from tidemark.model.lsn import BlockNumber, Xid
from tidemark.wal.data_directory import BackupUnusable
from tidemark.wal.record import BadRecord


class VisibleRow(NamedTuple):
    """A row's place and packed tuple."""

    block: BlockNumber
    offset: int
    packed: bytes


class VisibleRows:
    """Decides which rows are visible: their inserter has committed, and their deleter, if there is one, has not."""

    def __init__(self, log: CommitLog, multixacts: Multixacts) -> None:
        self._ends = Ends(log.status, self._updater, lambda _packed: None)
        self._multixacts = multixacts

    def _updater(self, multixact: Xid) -> Xid:
        xid = self._multixacts.updater(multixact)
        if xid is None:
            raise BackupUnusable(f"multixact {multixact} of a row is not in pg_multixact")
        return xid

    def rows(self, pages: Iterable[tuple[BlockNumber, bytes | bytearray]], where: str) -> Iterator[VisibleRow]:
        """Yield the visible rows of a table; `where` names it in errors."""
        for block, page in pages:
            try:
                for row in copied_rows(block, bytes(page), self._ends):
                    if not row.inserter:
                        yield VisibleRow(block, row.tid & OFFSET_MASK, row.packed)
            except BadRecord as error:
                raise BackupUnusable(f"page {block} of {where} cannot be read: {error}") from error
