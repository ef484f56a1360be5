"""Open transactions: their changes, their subtransactions, and the restart LSN.

A record names its (sub)transaction; only a subtransaction's first record names the top-level one, and an abort record
never does: a top-level transaction that wrote nothing itself is found through its subtransactions. Rows are stored
under the top-level xid, in record order, tagged with their own xid. The commit record names the subtransactions that
belong to it; each abort record removes its rows at once. A prepared transaction stays open until COMMIT PREPARED or
ROLLBACK PREPARED. A crash leaves transactions without an end; the next RUNNING_XACTS record identifies them.

*Partial* transactions began before the first record that was read. They can never be returned whole, so only their
xids are stored; the caller that starts a decoder ensures that none of them is requested.

A transaction with a *fault* cannot be read; its end shows whether it is requested. This is normal after a restart:
WAL is read again from the first record of the transactions that were open at the last delivery, and other transactions
were open there whose beginning is not read again. All of them ended before that delivery.
An *unassigned* subtransaction is one of such a transaction: the record that names its top-level xid is not read, so it
looks like a top-level transaction until the end of the real one names it.

A transaction is *pending* in the code that reads blocks of records (`skim`) as long as it has only a few rows: most
stay pending until their commit and never enter this table. Looking up a pending transaction moves it here.
"""

from collections.abc import Iterable, Iterator, Mapping

from tidemark.decode.transactions.ports import PendingTransactions, SpillPort
from tidemark.decode.transactions.reorder_buffer.open_transaction import OpenTransaction
from tidemark.decode.transactions.reorder_buffer.rowlog import RelationVersions, RowLog
from tidemark.model.errors import CorruptWal, TidemarkError
from tidemark.model.lsn import HALF_OF_XIDS, XID_MASK, FullXid, Lsn, Xid, format_lsn

SPILL_ABOVE = 0.9  # share of the bound from which the largest are spilled; the rest is space until the next count
SPILL_DOWN_TO = 0.5  # share of the bound to which a spill reduces memory: fewer, larger spills
NOT_WORTH_SPILLING = 0.05  # share of the bound that all small transactions together may keep in memory


class TransactionTooLarge(TidemarkError):
    """Open transactions need more memory than is allowed, and no spill storage is configured."""

    hint = "raise decode.memory_bytes, or let Tidemark spill to disk"


class UnseenStart(CorruptWal):
    """A requested transaction began before the first record that was read."""

    hint = (
        "decode from an earlier LSN, or from after its end if every catalog base that is kept is younger than it;"
        " if this happens at a restart, please report it, and make a new first copy"
    )


def xid_precedes(left: int, right: int) -> bool:
    """Return whether `left` is older than `right`, across wraparound (`TransactionIdPrecedes`, transam.c)."""
    return ((left - right) & XID_MASK) >= HALF_OF_XIDS


class TransactionTable:
    """All open transactions, within a memory bound."""

    def __init__(
        self, next_xid: FullXid, memory_bytes_max: int, port: SpillPort | None, complete_from: FullXid | None
    ) -> None:
        self._open: dict[Xid, OpenTransaction] = {}  # those that are not pending
        self._top_of: dict[Xid, Xid] = {}
        self._next_full = int(next_xid)  # next 64-bit xid to be assigned, as far as read
        self._memory_bytes_max = memory_bytes_max
        self._grown_bytes = 0  # upper bound of the growth since the last exact count
        self._counted_bytes = 0
        self._count_at_bytes = memory_bytes_max  # size at which the next exact count is due
        self.complete_from = complete_from  # older transactions are partial
        self.port = port
        self.pending_transactions: PendingTransactions | None = None
        self.versions = RelationVersions()
        self.spilled_bytes = 0  # total

    def __iter__(self) -> Iterator[OpenTransaction]:
        """Iterate over the open transactions; pending ones are moved here first."""
        self._adopt()
        return iter(self._open.values())

    @property
    def open_count(self) -> int:
        """The number of open transactions."""
        return len(self._open) + (
            self.pending_transactions.pending_count if self.pending_transactions is not None else 0
        )

    def _adopt(self) -> None:
        """Move all pending transactions here."""
        for xid in self.pending_transactions.xids() if self.pending_transactions is not None else ():
            self.find(xid)

    def find(self, xid: Xid) -> OpenTransaction | None:
        """Return the open top-level transaction `xid`; a pending one to which `xid` belongs is moved here first."""
        transaction = self._open.get(xid)
        if transaction is not None or self.pending_transactions is None:
            return transaction
        pending = self.pending_transactions.remove_pending(xid)
        if pending is None:
            return None
        taken = self._open[pending.xid] = OpenTransaction(pending.xid, pending.first_lsn, RowLog(self.versions))
        taken.rows.extend(pending.entries, pending.tuples, pending.more)
        taken.children.update(pending.children)
        self._top_of.update(dict.fromkeys(pending.children, pending.xid))
        self.grew(len(pending.entries) + len(pending.tuples))
        return self._open.get(xid)

    def _pop(self, xid: Xid) -> OpenTransaction | None:
        self.find(xid)
        return self._open.pop(xid, None)

    @property
    def top_of(self) -> Mapping[Xid, Xid]:
        """The top-level transaction of each open subtransaction."""
        return self._top_of

    def restart_lsn(self, otherwise: Lsn) -> Lsn:
        """Return the least first LSN of the transactions that can still be returned; `otherwise` if there are none."""
        least = self.others_lsn
        pending = self.pending_transactions.first_lsn if self.pending_transactions is not None else None
        if pending is not None and (least is None or pending < least):
            least = pending
        return otherwise if least is None or otherwise < least else least

    @property
    def others_lsn(self) -> Lsn | None:
        """The least first LSN of transactions that are not pending."""
        if not self._open:
            return None
        return min((known.first_lsn for known in self._open.values() if not known.partial), default=None)

    def enter(self, xid: Xid, top_xid: Xid, lsn: Lsn) -> OpenTransaction:
        """Return the transaction to which a record of `xid` belongs; `top_xid` is that in the record, or 0."""
        top = top_xid or self._top_of.get(xid, xid)
        transaction = self.find(top)
        if transaction is None and not top_xid and xid in self._top_of:  # `find` moved it from the pending ones
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
            self._merge_unassigned((xid,), transaction)
        return transaction

    def _merge_unassigned(self, xids: Iterable[Xid], top: OpenTransaction | None) -> OpenTransaction | None:
        """Merge unassigned subtransactions into `top`; return `top`, or one of them if there is no `top`.

        Their rows cannot be put in order among the other rows: so the whole transaction has a fault.
        """
        for xid in xids:
            unassigned = self._pop(xid)
            if unassigned is None:
                continue
            unassigned.give_up(unassigned.fault or self._unseen_start(xid), self.port)
            if top is None:
                top = unassigned
            elif top.is_kept:
                assert unassigned.fault is not None, "just given up"
                top.give_up(unassigned.fault, self.port)
        return top

    def _release_unassigned(self, xids: Iterable[Xid]) -> None:
        for xid in xids:
            unassigned = self._pop(xid)
            if unassigned is not None:
                unassigned.release(self.port)

    def enter_partial(self, xid: Xid, top_xid: Xid, first_lsn: Lsn) -> None:
        """Add a transaction that began before the first record to be read, and that is never requested."""
        self.enter(xid, top_xid, first_lsn).partial = True

    def pass_over(self, xid: Xid, top_xid: Xid, first_lsn: Lsn) -> None:
        """Add a transaction that is never requested: its rows are skipped, but its catalog changes are not."""
        transaction = self.enter(xid, top_xid, first_lsn)
        transaction.partial = transaction.passed_over = True

    def enter_unseen(self, xid: Xid, top_xid: Xid, first_lsn: Lsn) -> None:
        """Add a transaction that began before the first record to be read and should end before the requested part."""
        transaction = self.enter(xid, top_xid, first_lsn)
        if transaction.is_kept:
            transaction.give_up(self._unseen_start(transaction.xid), self.port)

    @staticmethod
    def _unseen_start(xid: Xid) -> UnseenStart:
        return UnseenStart(f"transaction {xid} began before the first record that was read")

    def is_open(self, xid: Xid) -> bool:
        """Return whether a transaction or subtransaction is known and has not ended."""
        return xid in self._open or xid in self._top_of

    def of(self, xid: Xid) -> OpenTransaction:
        """Return the open transaction to which the known `xid` belongs."""
        return self._open[self._top_of.get(xid, xid)]

    def family(self, xid: Xid) -> set[Xid]:
        """Return a top-level transaction and its known subtransactions that have not aborted."""
        transaction = self.find(xid)
        return {xid} if transaction is None else {xid, *transaction.children}

    def top(self, xid: Xid) -> Xid:
        """Return the top-level transaction of `xid`; `xid` itself if none is known."""
        return self._top_of.get(xid, xid)

    def leave(self, xid: Xid, committed: Iterable[Xid]) -> OpenTransaction | None:
        """Remove and return a transaction that ended, without the subtransactions that are not `committed`."""
        transaction = self._merge_unassigned(committed, self._pop(xid))
        if transaction is None:
            return None
        for child in transaction.children:
            self._top_of.pop(child, None)
        aborted = transaction.children.difference(committed)
        if aborted:
            transaction.exclude(aborted)
        return transaction

    def abort(self, xid: Xid, subxids: Iterable[Xid]) -> set[Xid]:
        """Remove a transaction or subtransaction with its subtransactions; return them all."""
        for member in (xid, *subxids):
            self.find(member)
        top = next((self._top_of[known] for known in (xid, *subxids) if known in self._top_of), xid)
        if top == xid:
            known = self.find(xid)
            children = known.children if known is not None else set()
            # No `drop` if the whole transaction goes: ROLLBACK PREPARED ends subtransactions that are not the tail.
            transaction = self.leave(xid, children)
            if transaction is not None:
                transaction.release(self.port)
            self._release_unassigned(subxids)
            return {xid, *subxids, *children}
        gone = {xid, *subxids}
        self._release_unassigned(gone)
        transaction = self._open.get(top)
        if transaction is not None:
            transaction.drop(gone)
        for child in gone:
            self._top_of.pop(child, None)
        return gone

    def abort_older_than(self, oldest_running: Xid) -> set[Xid]:
        """Remove transactions that a crash left without an end; return them, with their subtransactions."""
        self._adopt()
        dead = [xid for xid in self._open if xid_precedes(xid, oldest_running)]
        gone: set[Xid] = set()
        for xid in dead:
            gone |= self.abort(xid, ())
        return gone

    def renew_versions(self) -> None:
        """Start a new numbering of relation versions; open transactions keep their numbers."""
        self._adopt()
        self.versions = RelationVersions()

    def full_xid(self, xid: Xid) -> FullXid:
        """Return the 64-bit xid of a recent `xid`."""
        distance = (xid - self._next_full) & XID_MASK
        return FullXid(self._next_full + distance - (distance >= HALF_OF_XIDS) * (1 << 32))

    @property
    def next_xid(self) -> FullXid:
        """The next 64-bit xid to be assigned, as far as read."""
        return FullXid(self._next_full)

    def observe_next_xid(self, next_xid: int) -> None:
        """Advance the next xid (64 bits) from a checkpoint."""
        self._next_full = max(self._next_full, next_xid)

    def grew(self, byte_count: int) -> None:
        """Account for newly used memory; spill the largest transactions above the bound."""
        self._grown_bytes += byte_count
        if self._counted_bytes + self._grown_bytes > self._count_at_bytes:
            self._make_space()

    def _make_space(self) -> None:
        bound = self._memory_bytes_max
        total = sum(transaction.byte_count for transaction in self._open.values())
        if total > bound * SPILL_ABOVE:
            if self.port is None:
                largest = max(self._open.values(), key=lambda transaction: transaction.byte_count)
                raise TransactionTooLarge(
                    f"open transactions use {total} bytes, more than the allowed {bound}; the largest, "
                    f"{largest.xid}, began at {format_lsn(largest.first_lsn)}"
                )
            total -= self._spill(self.port, total - int(bound * SPILL_DOWN_TO))
        # NB: a value's chunks stay until its row comes; above the bound, counting at each row would be too slow.
        self._count_at_bytes = max(bound, total + int(bound * (1 - SPILL_ABOVE)))
        self._counted_bytes, self._grown_bytes = total, 0

    def _spill(self, port: SpillPort, needed_bytes: int) -> int:
        """Spill the largest transactions as long as it is worthwhile; return how much memory was freed."""
        sizes = {transaction.xid: transaction.spillable_bytes for transaction in self._open.values()}
        left, freed = sum(sizes.values()), 0
        for xid in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if freed >= needed_bytes or left <= self._memory_bytes_max * NOT_WORTH_SPILLING:
                break
            self.spilled_bytes += self._open[xid].spill(port)
            freed += sizes[xid]
            left -= sizes[xid]
        return freed

    def _advance(self, xid: Xid) -> None:
        self._next_full = max(self._next_full, self.full_xid(xid) + 1)
