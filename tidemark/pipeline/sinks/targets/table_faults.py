"""The tables with a fault, which a batch asks for several times: all tables are looked at once after each change."""

from collections.abc import Mapping, Sequence

from tidemark.pipeline.lake.faults import Fault
from tidemark.pipeline.lake.positions.table_position import TableId, TablePosition


class TableFaults:
    """The faults of one lake's tables; the mapping of tables is replaced, never changed, by each batch."""

    def __init__(self) -> None:
        self._tables: Mapping[TableId, TablePosition] | None = None
        self._found: Mapping[TableId, Sequence[Fault]] = {}

    def of(self, tables: Mapping[TableId, TablePosition]) -> Mapping[TableId, Sequence[Fault]]:
        """Return the faults of each of `tables` that has some."""
        if tables is not self._tables:
            self._found = {
                of: [fault for fault in (table.log.fault, table.replica.fault) if fault is not None]
                for of, table in tables.items()
                if table.log.fault is not None or table.replica.fault is not None
            }
            self._tables = tables
        return self._found
