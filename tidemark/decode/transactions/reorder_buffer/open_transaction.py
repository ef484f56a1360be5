"""One open transaction: its changes so far and those of its subtransactions, see `transactions`."""

from dataclasses import dataclass, field
from typing import NamedTuple

from tidemark.decode.datum.toast import ToastChunks
from tidemark.decode.transactions.object_names import RecordedNames
from tidemark.decode.transactions.ports import SpillPort
from tidemark.decode.transactions.reorder_buffer.itemlog import Item, ItemLog
from tidemark.decode.transactions.reorder_buffer.rowlog import RowLog
from tidemark.decode.transactions.schema_changes import SchemaTracker
from tidemark.model.errors import CorruptWal
from tidemark.model.lsn import Lsn, Xid
from tidemark.model.relation import Relation, RelFileLocator


class SpeculativeRow(NamedTuple):
    """An INSERT ... ON CONFLICT row that waits for its confirmation."""

    relation: Relation
    lsn: Lsn
    xid: Xid
    packed: bytes


class SpeculativeKey(NamedTuple):
    """The location of a speculative row, which the confirmation names."""

    locator: RelFileLocator
    block: int
    offset: int


@dataclass(slots=True, eq=False)
class OpenTransaction:
    """A top-level transaction that has not ended."""

    xid: Xid
    first_lsn: Lsn
    rows: RowLog
    partial: bool = False
    passed_over: bool = False  # partial, and its rows are skipped before they are read
    fault: CorruptWal | None = None  # the error that prevents its delivery, raised if it is requested
    gid: str | None = None  # of a prepared transaction
    schema: SchemaTracker | None = None  # set once it has changed a catalog
    children: set[Xid] = field(default_factory=set)  # seen so far and not aborted
    between: ItemLog = field(default_factory=ItemLog)
    toast: dict[Xid, ToastChunks] = field(default_factory=dict)
    speculative: dict[SpeculativeKey, SpeculativeRow] = field(default_factory=dict)
    names: RecordedNames = field(default_factory=RecordedNames)  # needed by its rows, if names are kept

    @property
    def byte_count(self) -> int:
        """Approximate memory used."""
        chunks = sum(chunks.byte_count for chunks in self.toast.values())
        return self.rows.byte_count + chunks + self.between.byte_count + self.names.byte_count

    @property
    def spillable_bytes(self) -> int:
        """The memory that `spill` frees."""
        return self.rows.byte_count + self.between.content_bytes

    def spill(self, port: SpillPort) -> int:
        """Move rows and messages to `port`; return how many bytes were moved."""
        before = self.rows.spilled_bytes
        self.rows.spill(port)
        return self.rows.spilled_bytes - before + self.between.spill(port)

    def release(self, port: SpillPort | None) -> None:
        """Drop rows and items, on disk as well."""
        self.rows.release(port)
        self.between.release(port)

    @property
    def is_empty(self) -> bool:
        """Return whether it has no content."""
        return not len(self.between) and not self.rows.surviving_count

    @property
    def is_kept(self) -> bool:
        """Return whether its changes are kept; if not, only its end matters."""
        return not self.partial and self.fault is None

    def give_up(self, fault: CorruptWal, port: SpillPort | None) -> None:
        """Drop all of its changes and store the reason why it cannot be read."""
        self.fault = fault
        self.schema = None
        self.release(port)
        self.toast.clear()
        self.speculative.clear()
        self.names = RecordedNames()

    def add_item(self, xid: Xid, item: Item) -> None:
        """Append an item that is not a row."""
        self.between.append(self.rows.entry_count, xid, item)

    def drop(self, xids: set[Xid]) -> None:
        """Drop the changes of aborted subtransactions."""
        self.rows.drop(xids)
        self.between.drop(xids)
        self._forget(xids)

    def exclude(self, xids: set[Xid]) -> None:
        """Drop the changes of subtransactions that the commit record does not name, though no abort was read."""
        self.rows.exclude(xids)
        self.between.exclude(xids)
        self._forget(xids)

    def _forget(self, xids: set[Xid]) -> None:
        self.children -= xids
        for xid in xids:
            self.toast.pop(xid, None)
        if self.speculative:
            self.speculative = {key: row for key, row in self.speculative.items() if row.xid not in xids}
        if self.schema is not None:
            self.schema.drop(xids)
