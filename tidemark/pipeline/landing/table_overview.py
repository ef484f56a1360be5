"""How many tables of a lake are in which state, and which have a fault: kept up to date by the tables that changed.

A lake has thousands of quiet tables, and each batch asks for all of this.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import compress
from operator import is_not

from tidemark.pipeline.lake.faults import Fault, FaultKind
from tidemark.pipeline.lake.positions.table_position import TableId, TablePosition, TableState

Tables = Mapping[TableId, TablePosition]
_NOT_SHOWN = (FaultKind.EXCLUDED, FaultKind.DEFERRED)


def faults_of(table: TablePosition) -> Iterator[tuple[str, Fault]]:
    """Yield the faults of a table, with `log` or `replica`; what the configuration excludes or defers is none."""
    for name, target in (("log", table.log), ("replica", table.replica)):
        if target.fault is not None and target.fault.kind not in _NOT_SHOWN:
            yield name, target.fault


def changed_tables(before: Tables, after: Tables) -> list[TablePosition]:
    """Return the tables of `after` that are other objects in `before`, or new."""
    # NB: without a call or a comparison in Python for each of thousands of tables.
    return list(compress(after.values(), map(is_not, after.values(), map(before.get, after))))


class TableOverview:
    """The states and faults of one lake's tables; the mapping of tables is replaced, never changed, by each batch."""

    def __init__(self) -> None:
        self._tables: Tables = {}
        self._states: Counter[TableState] = Counter()
        self._shown: dict[TableId, TablePosition] = {}  # those with a fault, and stale ones

    def update(self, tables: Tables) -> None:
        """Take over the present tables."""
        if not tables.keys() >= self._tables.keys():  # another lake
            self._tables, self._states, self._shown = {}, Counter(), {}
        for table in changed_tables(self._tables, tables):
            of = table.database, table.relation
            known = self._tables.get(of)
            if known is not None:
                self._states[known.state] -= 1
            self._states[table.state] += 1
            self._shown.pop(of, None)
            if table.state is TableState.STALE or any(faults_of(table)):
                self._shown[of] = table
        self._tables = tables

    def __len__(self) -> int:
        """Return the number of tables."""
        return len(self._tables)

    def count(self, state: TableState) -> int:
        """Return the number of tables in a state."""
        return self._states[state]

    @property
    def paused(self) -> int:
        """Return the number of tables of which log or replica is paused; a dropped table may be."""
        faults = ((fault.kind for _, fault in faults_of(table)) for table in self._shown.values())
        return sum(FaultKind.PAUSED in kinds for kinds in faults)

    def faults(self) -> list[tuple[TablePosition, str, Fault]]:
        """Return the faults: the table, `log` or `replica`, and the fault."""
        return [(table, target, fault) for table in self._shown.values() for target, fault in faults_of(table)]

    def stale(self) -> list[TablePosition]:
        """Return the tables whose replica is not updated."""
        return [table for table in self._shown.values() if table.state is TableState.STALE]
