"""Open transactions: what each has changed so far, which subtransactions it has, and where a restart must begin.

A record names its own (sub)transaction; the top-level one stands only in a subtransaction's first record, and never in
an abort record: one that wrote nothing itself is known by those below it. Rows are kept under the top-level xid, in
record order, and tagged with their own, until the commit record gives them out and says which subtransactions are in;
each abort record takes its rows away at once. A prepared transaction stays open until COMMIT PREPARED. A crash leaves
transactions without an end: the next RUNNING_XACTS record tells them apart.

*Partial* transactions began before the first record that was read. They can never be given out whole, so nothing of
them is kept but their names; whoever starts a decoder sees to it that none of them is wanted.

A transaction in *doubt* is one that cannot be read, and of which its end only will tell whether it is wanted. After a
restart that is an ordinary thing: WAL is read again from the first record of what was open at the last delivery, and
there others are on their way whose beginning is not read again. All of them have ended by the time of that delivery.
A *stray* is a subtransaction of such a one: its top-level xid stood in the part that is not read, so it looks like a
top-level transaction until the end of the real one names it.

A transaction is *held* by who reads blocks of records (`skim`) as long as there is nothing to it but a few rows: most
are until their commit, and never come here. Whoever asks for one that is makes it one of the others.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tidemark.decode.itemlog import Item, ItemLog
from tidemark.decode.object_names import NO_NAMES, NamesNoted
from tidemark.decode.ports import Holder, SpillPort
from tidemark.decode.row_entries import tuple_bytes
from tidemark.decode.rowlog import RelationVersions, Row, RowChunk, RowLog
from tidemark.decode.schema_changes import SchemaTracker
from tidemark.decode.toast import ToastChunks
from tidemark.model.change import TransactionEnd
from tidemark.model.errors import CorruptWal, TidemarkError
from tidemark.model.lsn import FullXid, Lsn, Oid, Xid, format_lsn
from tidemark.model.position import Position
from tidemark.model.relation import Relation, RelFileLocator

SPILL_ABOVE = 0.9  # share of the bound from which the largest are spilled; the rest is room until the next count
SPILL_DOWN_TO = 0.5  # share of the bound to which a spill empties memory: fewer, larger spills
NOT_WORTH_SPILLING = 0.05  # share of the bound that all small transactions together may keep
_XID_HALF = 1 << 31
_XID_MASK = 0xFFFFFFFF


class TransactionTooLarge(TidemarkError):
    """Open transactions need more memory than is allowed, and there is nowhere to put them."""

    hint = "raise decode.memory_bytes, or let Tidemark spill to disk"


class UnseenStart(CorruptWal):
    """A transaction is wanted whose first records are not among those that were read."""

    hint = (
        "decode from an earlier LSN, or behind its end where no catalog base that is kept is older than it;"
        " if this comes at a restart, please report it, and make a new first copy"
    )


def xid_precedes(left: int, right: int) -> bool:
    """Tell if `left` is older than `right`, across wraparound (`TransactionIdPrecedes`, transam.c)."""
    return ((left - right) & _XID_MASK) >= _XID_HALF


@dataclass(frozen=True, slots=True)
class RowRun:
    """Entries `start` to `stop` of a chunk, next to each other in the stream; the first row has `first_ordinal`."""

    chunk: RowChunk
    versions: RelationVersions  # whose numbers the entries hold
    start: int
    stop: int
    first_ordinal: int
    tuples_at: int  # where the tuples of row `start` begin

    def ordinal(self, row: int) -> int:
        """Return the ordinal of an entry, or behind the last."""
        return self.first_ordinal + self.chunk.row_count(self.start, row)

    def row_at(self, ordinal: int) -> int:
        """Return the first entry that has a row at `ordinal` or behind it."""
        if not self.chunk.more:
            return min(self.stop, self.start + max(0, ordinal - self.first_ordinal))
        return bisect_right(range(self.start, self.stop), ordinal, key=lambda row: self.ordinal(row + 1)) + self.start

    def rows(self) -> Iterator[Row]:
        """Take the rows out one by one."""
        return self.chunk.rows(self.start, self.stop, self.tuples_at)


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


class Ended(NamedTuple):
    """What a commit record says of its transaction, and where it stands."""

    xid: Xid
    commit_lsn: Lsn
    end_lsn: Lsn
    time_us: int
    database: Oid
    origin: int = 0
    gid: str | None = None


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


@dataclass(frozen=True, slots=True, eq=False)
class CommittedTransaction:
    """A whole transaction, with something in it, at its place in commit order.

    `release` gives back what was spilled; after that there are no items.
    """

    end: TransactionEnd
    restart_lsn: Lsn  # of a pointer at its end
    inner_restart_lsn: Lsn  # of a pointer before its end: it has to be read again then
    _rows: RowLog
    _between: ItemLog
    _port: SpillPort | None
    names: NamesNoted = NO_NAMES  # that its rows need, if they were kept

    def items(self) -> Iterator[RowRun | Item]:
        """Give out the rows, in runs as long as possible, and what stands between them."""
        ordinal = 0
        waiting = self._between.read(self._port)
        following = next(waiting, None)
        for base, chunk in self._rows.chunks(self._port):
            start = counted = at = 0
            while start < len(chunk):
                while following is not None and following[0] <= base + start:
                    yield self._placed(following[1], ordinal)
                    ordinal += 1
                    following = next(waiting, None)
                stop = len(chunk) if following is None else min(len(chunk), following[0] - base)
                for run_start, run_stop in self._rows.surviving(chunk, start, stop):
                    at += tuple_bytes(chunk.entries, counted, run_start)
                    counted = run_start
                    yield RowRun(chunk, self._rows.versions, run_start, run_stop, ordinal, at)
                    ordinal += chunk.row_count(run_start, run_stop)
                start = stop
        while following is not None:
            yield self._placed(following[1], ordinal)
            ordinal += 1
            following = next(waiting, None)
        assert ordinal == self.end.item_count, self.end

    @property
    def byte_count(self) -> int:
        """Memory taken, about; what was spilled does not count."""
        return self._rows.byte_count + self._between.byte_count

    def release(self) -> None:
        """Forget rows and items, on disk as well."""
        self._rows.release(self._port)
        self._between.release(self._port)

    def _placed(self, item: Item, ordinal: int) -> Item:
        return replace(item, position=Position(self.end.timeline, self.end.commit_lsn, ordinal))


class TransactionTable:
    """All open transactions, within a bound of memory."""

    def __init__(
        self, next_xid: FullXid, memory_bytes_max: int, port: SpillPort | None, complete_from: FullXid | None
    ) -> None:
        self._open: dict[Xid, OpenTransaction] = {}  # those that are not held
        self._top_of: dict[Xid, Xid] = {}
        self._next_full = int(next_xid)  # 64-bit xid next to be given out, as far as seen
        self._memory_bytes_max = memory_bytes_max
        self._grown_bytes = 0  # at most this much since the last exact count
        self._counted_bytes = 0
        self._count_at_bytes = memory_bytes_max  # the next exact count is due at so many
        self.complete_from = complete_from  # older transactions are partial
        self.port = port
        self.holder: Holder | None = None
        self.versions = RelationVersions()
        self.spilled_bytes = 0  # ever

    def __iter__(self) -> Iterator[OpenTransaction]:
        """Go through the open transactions; none is held from then on."""
        self._take_over()
        return iter(self._open.values())

    @property
    def open_count(self) -> int:
        """How many transactions are open."""
        return len(self._open) + (self.holder.held_count if self.holder is not None else 0)

    def _take_over(self) -> None:
        """Take all that are held."""
        for xid in self.holder.xids() if self.holder is not None else ():
            self.find(xid)

    def find(self, xid: Xid) -> OpenTransaction | None:
        """Return the open top-level transaction `xid`, taken over if it is held; so is that of a subtransaction."""
        transaction = self._open.get(xid)
        if transaction is not None or self.holder is None:
            return transaction
        held = self.holder.take_out(xid)
        if held is None:
            return None
        taken = self._open[held.xid] = OpenTransaction(held.xid, held.first_lsn, RowLog(self.versions))
        taken.rows.extend(held.entries, held.tuples, held.more)
        taken.children.update(held.children)
        self._top_of.update(dict.fromkeys(held.children, held.xid))
        self.grew(len(held.entries) + len(held.tuples))
        return self._open.get(xid)

    def _pop(self, xid: Xid) -> OpenTransaction | None:
        self.find(xid)
        return self._open.pop(xid, None)

    @property
    def top_of(self) -> Mapping[Xid, Xid]:
        """The top-level transaction of each open subtransaction."""
        return self._top_of

    def restart_lsn(self, otherwise: Lsn) -> Lsn:
        """Return the least first LSN of the transactions that may still be given out, `otherwise` if there are none."""
        least = self.others_lsn
        held = self.holder.first_lsn if self.holder is not None else None
        if held is not None and (least is None or held < least):
            least = held
        return otherwise if least is None or otherwise < least else least

    @property
    def others_lsn(self) -> Lsn | None:
        """The least first LSN of those that are not held."""
        if not self._open:
            return None
        return min((known.first_lsn for known in self._open.values() if not known.partial), default=None)

    def enter(self, xid: Xid, top_xid: Xid, lsn: Lsn) -> OpenTransaction:
        """Return the transaction to which a record of `xid` belongs; `top_xid` is the record's own word on that."""
        top = top_xid or self._top_of.get(xid, xid)
        transaction = self.find(top)
        if transaction is None and not top_xid and xid in self._top_of:  # by now: it was held
            top = self._top_of[xid]
            transaction = self._open[top]
        if transaction is None:
            self._advance(top)
            old = self.complete_from is not None and self.full_xid(top) < self.complete_from
            transaction = self._open[top] = OpenTransaction(top, lsn, RowLog(self.versions), partial=old)
        if top_xid and top_xid != xid and xid not in transaction.children:
            self._advance(xid)
            transaction.children.add(xid)
            self._top_of[xid] = top_xid
            self._fold_strays((xid,), transaction)
        return transaction

    def _fold_strays(self, xids: Iterable[Xid], top: OpenTransaction | None) -> OpenTransaction | None:
        """Take strays for what they are, a part of `top`; return it, or a stray in its place if that is all there is.

        What a stray did cannot be put into its place among the rows of the others: so all of it is in doubt.
        """
        for xid in xids:
            stray = self._pop(xid)
            if stray is None:
                continue
            stray.give_up(stray.doubt or self._unseen_start(xid), self.port)
            if top is None:
                top = stray
            elif top.is_kept:
                assert stray.doubt is not None, "just given up"
                top.give_up(stray.doubt, self.port)
        return top

    def _forget_strays(self, xids: Iterable[Xid]) -> None:
        for xid in xids:
            stray = self._pop(xid)
            if stray is not None:
                stray.release(self.port)

    def enter_partial(self, xid: Xid, top_xid: Xid, first_lsn: Lsn) -> None:
        """Note a transaction that began before the first record to be read, and is not wanted whenever it ends."""
        self.enter(xid, top_xid, first_lsn).partial = True

    def enter_unseen(self, xid: Xid, top_xid: Xid, first_lsn: Lsn) -> None:
        """Note a transaction that began before the first record to be read, and should end before what is wanted."""
        transaction = self.enter(xid, top_xid, first_lsn)
        if transaction.is_kept:
            transaction.give_up(self._unseen_start(transaction.xid), self.port)

    @staticmethod
    def _unseen_start(xid: Xid) -> UnseenStart:
        return UnseenStart(f"transaction {xid} began before the first record that was read")

    def is_open(self, xid: Xid) -> bool:
        """Tell if a transaction or subtransaction is known that has not ended."""
        return xid in self._open or xid in self._top_of

    def of(self, xid: Xid) -> OpenTransaction:
        """Return the open transaction to which `xid`, which is known, belongs."""
        return self._open[self._top_of.get(xid, xid)]

    def family(self, xid: Xid) -> set[Xid]:
        """Return a top-level transaction and its subtransactions, as far as seen and not aborted."""
        transaction = self.find(xid)
        return {xid} if transaction is None else {xid, *transaction.children}

    def top(self, xid: Xid) -> Xid:
        """Return the top-level transaction of `xid`, `xid` itself if nothing else is known."""
        return self._top_of.get(xid, xid)

    def leave(self, xid: Xid, committed: Iterable[Xid]) -> OpenTransaction | None:
        """Take out a transaction that ended, less those subtransactions that are not `committed`."""
        transaction = self._fold_strays(committed, self._pop(xid))
        if transaction is None:
            return None
        for child in transaction.children:
            self._top_of.pop(child, None)
        aborted = transaction.children.difference(committed)
        if aborted:
            transaction.exclude(aborted)
        return transaction

    def abort(self, xid: Xid, subxids: Iterable[Xid]) -> set[Xid]:
        """Forget a transaction or subtransaction, with its own subtransactions; return them all."""
        for member in (xid, *subxids):
            self.find(member)
        top = next((self._top_of[known] for known in (xid, *subxids) if known in self._top_of), xid)
        if top == xid:
            known = self.find(xid)
            children = known.children if known is not None else set()
            # Nothing to drop from what is forgotten whole: ROLLBACK PREPARED ends subtransactions that are no tail.
            transaction = self.leave(xid, children)
            if transaction is not None:
                transaction.release(self.port)
            self._forget_strays(subxids)
            return {xid, *subxids, *children}
        gone = {xid, *subxids}
        self._forget_strays(gone)
        transaction = self._open.get(top)
        if transaction is not None:
            transaction.drop(gone)
        for child in gone:
            self._top_of.pop(child, None)
        return gone

    def abort_older_than(self, oldest_running: Xid) -> set[Xid]:
        """Forget transactions that a crash left without an end; return them, subtransactions included."""
        self._take_over()
        dead = [xid for xid in self._open if xid_precedes(xid, oldest_running)]
        gone: set[Xid] = set()
        for xid in dead:
            gone |= self.abort(xid, ())
        return gone

    def renew_versions(self) -> None:
        """Begin to number relation versions anew; transactions that are open keep their numbers."""
        self._take_over()
        self.versions = RelationVersions()

    def full_xid(self, xid: Xid) -> FullXid:
        """Return the 64-bit xid of a recent `xid`."""
        distance = (xid - self._next_full) & _XID_MASK
        return FullXid(self._next_full + distance - (distance >= _XID_HALF) * (1 << 32))

    @property
    def next_xid(self) -> FullXid:
        """The next 64-bit xid to be given out, as far as seen."""
        return FullXid(self._next_full)

    def observe_next_xid(self, next_xid: int) -> None:
        """Learn from a checkpoint how far xids are (64 bits)."""
        self._next_full = max(self._next_full, next_xid)

    def grew(self, byte_count: int) -> None:
        """Account for memory just taken; spill the largest transactions where it is too much."""
        self._grown_bytes += byte_count
        if self._counted_bytes + self._grown_bytes > self._count_at_bytes:
            self._make_room()

    def _make_room(self) -> None:
        bound = self._memory_bytes_max
        total = sum(transaction.byte_count for transaction in self._open.values())
        if total > bound * SPILL_ABOVE:
            if self.port is None:
                largest = max(self._open.values(), key=lambda transaction: transaction.byte_count)
                raise TransactionTooLarge(
                    f"open transactions take {total} bytes, {bound} are allowed; the largest, "
                    f"{largest.xid}, began at {format_lsn(largest.first_lsn)}"
                )
            total -= self._spill(self.port, total - int(bound * SPILL_DOWN_TO))
        # NB: chunks of a value stay until its row has come; while they are over the bound, not every row is a count.
        self._count_at_bytes = max(bound, total + int(bound * (1 - SPILL_ABOVE)))
        self._counted_bytes, self._grown_bytes = total, 0

    def _spill(self, port: SpillPort, wanted_bytes: int) -> int:
        """Spill the largest transactions, as far as it is worth it; return by how much memory shrank."""
        sizes = {transaction.xid: transaction.spillable_bytes for transaction in self._open.values()}
        left, freed = sum(sizes.values()), 0
        for xid in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if freed >= wanted_bytes or left <= self._memory_bytes_max * NOT_WORTH_SPILLING:
                break
            self.spilled_bytes += self._open[xid].spill(port)
            freed += sizes[xid]
            left -= sizes[xid]
        return freed

    def _advance(self, xid: Xid) -> None:
        self._next_full = max(self._next_full, self.full_xid(xid) + 1)
