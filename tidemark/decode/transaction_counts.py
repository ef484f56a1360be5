"""How many changes of which table a transaction has, and which of them each change is (P11).

Only where it is asked for: it costs a step a transaction and table, where batches cost none. Counted is what is given
out, so the numbers go by what is selected; a change's place in its transaction is its ordinal, which nothing shifts.
Kept are the counts of transactions whose end was not told yet: one at most is open at the end of a group.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tidemark.model.change import TABLE_ORDINAL, ChangeBatch, TableCount, TransactionEnd
from tidemark.model.lsn import Lsn, Oid
from tidemark.model.relation import Relation

_FIELD = pa.field(TABLE_ORDINAL, pa.int64(), nullable=False)


@dataclass(slots=True)
class _Counted:
    """Changes of one table so far, and what it was called by the last of them."""

    relation: Relation
    count: int = 0


class TransactionCounts:
    """Counts changes by transaction and table, as they are given out."""

    def __init__(self) -> None:
        self._tables: dict[Lsn, dict[tuple[Oid, Oid], _Counted]] = {}  # by the commit's LSN

    def count(self, commit_lsn: Lsn, database: Oid, relation: Relation, changes: int) -> int:
        """Count changes of a table; return how many came before them."""
        counted = self._tables.setdefault(commit_lsn, {}).setdefault((database, relation.oid), _Counted(relation))
        before, counted.count, counted.relation = counted.count, counted.count + changes, relation
        return before

    def number(self, batches: Sequence[ChangeBatch]) -> list[ChangeBatch]:
        """Return batches of one table, in stream order, with the number of each change in its transaction."""
        return [self._numbered(batch) for batch in batches]

    def _numbered(self, batch: ChangeBatch) -> ChangeBatch:
        rows = batch.rows
        lsns = rows.column("_commit_lsn").to_numpy()
        starts = np.concatenate([[0], np.flatnonzero(np.diff(lsns)) + 1])
        lengths = np.diff([*starts, len(lsns)])
        before = [
            self.count(Lsn(int(lsns[start])), batch.database, batch.relation, int(length))
            for start, length in zip(starts, lengths, strict=True)
        ]
        numbers = np.arange(len(lsns)) + np.repeat(np.array(before, np.int64) - starts, lengths)
        return replace(batch, given=rows.append_column(_FIELD, pa.array(numbers, pa.int64())))

    def told(self, end: TransactionEnd) -> TransactionEnd:
        """Return the end of a transaction with its counts, and forget them."""
        counted = self._tables.pop(end.commit_lsn, {})
        tables = (
            TableCount(oid, table.relation.namespace, table.relation.name, table.count)
            for (_, oid), table in counted.items()
        )
        return replace(end, tables=tuple(tables))
