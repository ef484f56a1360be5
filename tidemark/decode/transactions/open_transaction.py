"""One open transaction: what it and its subtransactions have changed so far, see `transactions`."""

from dataclasses import dataclass, field
from typing import NamedTuple

from tidemark.decode.datum.toast import ToastChunks
from tidemark.decode.transactions.itemlog import Item, ItemLog
from tidemark.decode.transactions.object_names import NamesNoted
from tidemark.decode.transactions.ports import SpillPort
from tidemark.decode.transactions.rowlog import RowLog
from tidemark.decode.transactions.schema_changes import SchemaTracker
from tidemark.model.errors import CorruptWal
from tidemark.model.lsn import Lsn, Xid
from tidemark.model.relation import Relation, RelFileLocator


class SpeculativeRow(NamedTuple):
    """A row of INSERT ... ON CONFLICT that waits for its confirmation."""

    relation: Relation
    lsn: Lsn
    xid: Xid
    packed: bytes


class SpeculativeKey(NamedTuple):
    """Where a speculative row stands: what the confirmation names."""

    locator: RelFileLocator
    block: int
    offset: int


@dataclass(slots=True, eq=False)
class OpenTransaction:
    """A top-level transaction without an end so far."""

    xid: Xid
    first_lsn: Lsn
    rows: RowLog
    partial: bool = False
    doubt: CorruptWal | None = None  # why it cannot be given out, should it be wanted
    gid: str | None = None  # of a prepared one
    schema: SchemaTracker | None = None  # once it has changed a catalog
    children: set[Xid] = field(default_factory=set)  # not aborted, as far as seen
    between: ItemLog = field(default_factory=ItemLog)
    toast: dict[Xid, ToastChunks] = field(default_factory=dict)
    speculative: dict[SpeculativeKey, SpeculativeRow] = field(default_factory=dict)
    names: NamesNoted = field(default_factory=NamesNoted)  # that its rows need, where they are kept

    @property
    def byte_count(self) -> int:
        """Memory taken, about."""
        chunks = sum(chunks.byte_count for chunks in self.toast.values())
        return self.rows.byte_count + chunks + self.between.byte_count + self.names.byte_count

    @property
    def spillable_bytes(self) -> int:
        """The part of it that `spill` moves out of memory."""
        return self.rows.byte_count + self.between.content_bytes

    def spill(self, port: SpillPort) -> int:
        """Move rows and messages to `port`; return how many bytes that were."""
        before = self.rows.spilled_bytes
        self.rows.spill(port)
        return self.rows.spilled_bytes - before + self.between.spill(port)

    def release(self, port: SpillPort | None) -> None:
        """Forget rows and items, on disk as well."""
        self.rows.release(port)
        self.between.release(port)

    @property
    def is_empty(self) -> bool:
        """Tell if there is nothing to give out."""
        return not len(self.between) and not self.rows.surviving_count

    @property
    def is_kept(self) -> bool:
        """Tell if what it does is kept: if not, its end is all that matters."""
        return not self.partial and self.doubt is None

    def give_up(self, doubt: CorruptWal, port: SpillPort | None) -> None:
        """Keep of the transaction nothing but why it cannot be read."""
        self.doubt = doubt
        self.schema = None
        self.release(port)
        self.toast.clear()
        self.speculative.clear()
        self.names = NamesNoted()

    def add_item(self, xid: Xid, item: Item) -> None:
        """Take an item that is no row."""
        self.between.append(self.rows.entry_count, xid, item)

    def drop(self, xids: set[Xid]) -> None:
        """Forget what aborted subtransactions did."""
        self.rows.drop(xids)
        self.between.drop(xids)
        self._forget(xids)

    def exclude(self, xids: set[Xid]) -> None:
        """Forget what subtransactions did that are not in the commit record, though nothing said that they aborted."""
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
