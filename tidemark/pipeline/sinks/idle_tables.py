"""The tables without items that a batch opens nevertheless: others may have written to them since the last batch.

Maintenance commits to a table, an operator removes a restriction, and another writer may commit at any time.
"""

from collections import deque
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

from tidemark.pipeline.delta_log.commits import has_commit
from tidemark.pipeline.lake.faults import FaultKind
from tidemark.pipeline.lake.folders import delta_tables
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.positions.table_position import TableId, TableState
from tidemark.pipeline.sinks.lake_batch import SplitBatch
from tidemark.pipeline.sinks.targets.table_faults import TableFaults
from tidemark.pipeline.storage.stores import store_of


class IdleTables:
    """The idle tables of one lake that have to be opened."""

    def __init__(self, root: str, positions: Positions, faults: TableFaults) -> None:
        self._root = root
        self._store = store_of(root)
        self._positions = positions
        self._faults = faults
        self._maintained: set[str] = set()  # folders with commits of maintenance that `_positions` does not record
        self._unchecked: deque[TableId] = deque()  # the tables that this round has not checked yet

    def record_maintenance(self, folders: Collection[str]) -> None:
        """Let the next batch open the tables of these folders of Delta tables."""
        self._maintained.update(folders)

    def add_to(self, split: SplitBatch) -> None:
        """Add to a batch the tables that it has to open without items."""
        self._add_maintained(split)
        self._add_stopped(split)
        self._add_changed(split)

    def _add_maintained(self, split: SplitBatch) -> None:
        maintained, self._maintained = self._maintained, set()
        settled = (self._positions.settled_in(folder.rpartition("/")[0]) for folder in maintained)
        self._positions.recall([of for of in settled if of is not None])
        for of, known in self._positions.tables.items() if maintained else ():
            if any(folder in maintained for folder, _ in delta_tables(known)):
                split.add(of)

    def _add_stopped(self, split: SplitBatch) -> None:
        """Add stopped tables: their restriction may have been removed."""
        for of, faults in self._faults.of(self._positions.tables).items():
            if any(fault.kind is FaultKind.STOPPED for fault in faults):
                split.add(of)

    def _add_changed(self, split: SplitBatch) -> None:
        """Add some tables, in rotation, if another writer may have committed to them.

        For each log or replica the check tests two files: whether the recorded commit exists, and whether a later one
        does. Only a table that fails the check is opened. One with items is opened anyway, unless it has a fault.
        """
        tables = self._positions.tables
        if not self._unchecked:
            self._unchecked.extend(tables)
        some = [self._unchecked.popleft() for _ in range(min(self._store.checks_max, len(self._unchecked)))]
        opened = split.tables.keys() - self._faults.of(tables).keys()
        # The replica of a dropped table belongs to its owner.
        known = [of for of in some if of in tables and of not in opened and tables[of].state is not TableState.DROPPED]
        if self._store.requests_at_once == 1:
            changed = list(map(self._is_table_changed, known))
        else:
            with ThreadPoolExecutor(self._store.requests_at_once, "tidemark-store") as pool:
                changed = list(pool.map(self._is_table_changed, known))
        for of, is_changed in zip(known, changed, strict=True):
            if is_changed:
                split.add(of)

    def _is_table_changed(self, of: TableId) -> bool:
        return any(self._is_changed(*found) for found in delta_tables(self._positions.tables[of]))

    def _is_changed(self, folder: str, version: int) -> bool:
        uri = f"{self._root}/{folder}"
        try:
            return has_commit(uri, version + 1) or not has_commit(uri, version)
        except OSError:
            return False  # an idle table with an unreadable folder must not delay others; its next change reports it
