"""Starts decoding at any LSN that the catalog history covers, from an archive or a stream.

The output is all transactions whose commit record begins in [from, to), and all messages outside transactions that do.
Decoding begins earlier: at a saved base at or below the first record of any transaction open at `from`. Let B be
the newest base at or below `from`. A transaction open at `from` was open at B or began after it; so nothing is missed
if decoding begins at the lowest first LSN of the transactions open at B, which B's entry in the index contains. The
decoder may find other transactions there without their first records; they have ended by B, and are skipped
(`Decoder`, `from_lsn`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tidemark.decode.catalog.databases import DatabaseMirrors, every_database
from tidemark.decode.catalog.history import Base
from tidemark.decode.transactions.decoder import Decoded, DecodedRun, Decoder, WriteJournal
from tidemark.decode.transactions.ports import SpillPort
from tidemark.decode.transactions.reorder_buffer.committed_run import CommittedRun
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.decode.transactions.reorder_buffer.transactions import TransactionTable
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.state.history_files import DamagedBase, NoBase, base_for, ignore_damaged_base, load_catalogs
from tidemark.io.state.state_views import StateView
from tidemark.model.errors import ConfigError, StateError, WalGap
from tidemark.model.lsn import INVALID_LSN, INVALID_XID, FullXid, Lsn, Oid, TimelineId, format_lsn
from tidemark.model.mapping import TypeMapping
from tidemark.runtime.replay.decode_run import WalDecoding
from tidemark.wal.page import Framer
from tidemark.wal.versions import wal_format


class WalTrimmed(WalGap):
    """The folder's WAL begins after the LSN at which decoding would have to begin."""

    hint = (
        "the spool keeps only the WAL that a restart needs: set archive.keep_bytes to keep more WAL and the "
        "catalog bases to decode it (this does not restore trimmed WAL), or give a folder with the missing "
        "segments"
    )


@dataclass(frozen=True, slots=True)
class LsnRange:
    """The requested range [from, to), open at an end that is None."""

    from_lsn: Lsn | None = None
    to_lsn: Lsn | None = None

    def __post_init__(self) -> None:
        if self.from_lsn is not None and self.to_lsn is not None and self.from_lsn > self.to_lsn:
            text = f"{format_lsn(self.from_lsn)} comes after {format_lsn(self.to_lsn)}, the end of the range"
            raise ConfigError(text, hint="give the earlier LSN as --from")

    def holds(self, decoded: Decoded) -> bool:
        """Return whether the record that completes `decoded` begins in the range."""
        lsn = decoded.end.commit_lsn if isinstance(decoded, CommittedTransaction) else decoded.lsn
        return (self.from_lsn is None or lsn >= self.from_lsn) and (self.to_lsn is None or lsn < self.to_lsn)

    def part_of(self, decoded: DecodedRun) -> DecodedRun | None:
        """Return the part of `decoded` in the range, if there is one; release the rest."""
        if isinstance(decoded, CommittedRun):
            start = 0 if self.from_lsn is None else decoded.index_of(self.from_lsn)
            stop = len(decoded) if self.to_lsn is None else decoded.index_of(self.to_lsn)
            return decoded.cut(start, stop) if start < stop else None
        if self.holds(decoded):
            return decoded
        if isinstance(decoded, CommittedTransaction):
            decoded.release()
        return None


@dataclass(frozen=True, slots=True)
class HistoryStart:
    """A decoder that is ready for the WAL from `lsn` on."""

    lsn: Lsn
    timeline: TimelineId
    mirrors: DatabaseMirrors
    databases: Mapping[Oid, str]  # captured now or earlier; updated while decoding continues
    decoding: WalDecoding
    types: TypeMapping
    from_lsn: Lsn | None = None  # the first LSN of the output; None: everything

    @property
    def decoded_lsn(self) -> Lsn:
        """End of the last record decoded so far."""
        return max(self.decoding.decoder.decoded_lsn, self.lsn)


def begin_from_history(
    view: StateView,
    folder: Path,
    from_lsn: Lsn | None,
    *,
    memory_bytes: int,
    spill: SpillPort | None = None,
    passed_over: Callable[[DamagedBase], None] = ignore_damaged_base,
    archive: ArchiveFolder | None = None,
) -> HistoryStart:
    """Return a decoder for everything that commits at or after `from_lsn`; None: everything that is available.

    `folder` contains the history's files; raise `NoBase` if `from_lsn` is below the oldest base. If the WAL in
    `archive` begins after the oldest base, as in a trimmed spool, the output begins later, at `HistoryStart.from_lsn`;
    raise `WalTrimmed` if nothing is available, or not from `from_lsn` on.
    """
    if view.beginning is None:
        raise StateError("the state has no catalog base", hint="complete it with cdcctl init")
    oldest = min((base.lsn for base in view.history.bases), default=None)
    if oldest is None:
        raise NoBase("the state has no catalog base")
    begin = base_for(view.history, oldest if from_lsn is None else from_lsn)
    start_lsn = max(begin.restart_lsn, oldest)
    if archive is not None and start_lsn < archive.first_lsn():
        from_lsn, start_lsn = _later_start(view, oldest, from_lsn, archive)
    base = load_catalogs(
        folder, view.history, view.journal, start_lsn, seeded_lsn=view.beginning.lsn, passed_over=passed_over
    )
    start = start_at(view, base, start_lsn, from_lsn=from_lsn, memory_bytes=memory_bytes, spill=spill)
    enter_open(start.decoding.decoder.transactions, base, start_lsn, requested=from_lsn is not None)
    return start


def start_at(
    view: StateView,
    base: Base,
    lsn: Lsn,
    *,
    from_lsn: Lsn | None,
    memory_bytes: int,
    to_lsn: Lsn | None = None,
    next_xid: FullXid | None = None,
    spill: SpillPort | None = None,
    journal: WriteJournal | None = None,
) -> HistoryStart:
    """Return a decoder for the WAL from `lsn` on, where `base` is; the caller enters the open transactions.

    With `to_lsn`, only transactions that commit before it are requested (`Decoder`).
    """
    assert view.beginning is not None, "a state with a base has a beginning"
    fmt = wal_format(view.identity.server_major)
    framer = Framer(
        fmt,
        system_identifier=view.identity.system_identifier,
        segment_bytes=view.identity.segment_bytes,
        timeline=base.timeline,
        start_lsn=lsn,
    )
    decoder = Decoder(
        fmt,
        base.timeline,
        base.mirrors,
        next_xid=base.next_xid if next_xid is None else next_xid,
        memory_bytes=memory_bytes,
        spill=spill,
        complete_from=view.beginning.complete_from,
        from_lsn=INVALID_LSN if from_lsn is None else from_lsn,
        to_lsn=to_lsn,
    )
    decoding = WalDecoding(framer, decoder, base.timeline, journal)
    base.mirrors.select(every_database)
    names = base.mirrors.remember(view.beginning.databases)
    return HistoryStart(lsn, base.timeline, base.mirrors, names, decoding, view.beginning.types, from_lsn)


def _later_start(view: StateView, oldest: Lsn, from_lsn: Lsn | None, archive: ArchiveFolder) -> tuple[Lsn, Lsn]:
    """Return the LSN from which the output is complete, and where decoding for it begins, both after trimmed WAL.

    A base is such an LSN, and so is a pointer: later commits are complete from its restart LSN on.
    """
    starts = [(base.lsn, max(base.restart_lsn, oldest)) for base in view.history.bases]
    starts += [
        (Lsn(mark.pointer.position.commit_lsn + 1), mark.pointer.restart_lsn)
        for mark in (view.horizon, view.delivered)
        if mark is not None
    ]
    first_wal_lsn = archive.first_lsn()
    usable = sorted(each for each in starts if each[1] >= max(first_wal_lsn, oldest))
    if from_lsn is None and usable:
        return usable[0]
    before = [start_lsn for begin_lsn, start_lsn in usable if from_lsn is not None and begin_lsn <= from_lsn]
    if from_lsn is None or not before:
        requested = "" if from_lsn is None else f" from {format_lsn(from_lsn)}"
        begins = f"; decoding is possible from {format_lsn(usable[0][0])} on" if usable else ""
        text = f"{archive.folder} has no WAL before {format_lsn(first_wal_lsn)}, and decoding{requested} needs it"
        raise WalTrimmed(f"{text}{begins}")
    return from_lsn, before[-1]


def enter_open(transactions: TransactionTable, base: Base, lsn: Lsn, *, requested: bool) -> None:
    """Enter the transactions that are open at `lsn` and began before it; `base` was replayed up to it.

    At the LSN of `base` these are all open transactions; after it only those that changed catalogs are known.
    `requested`: it is an error if one of them ends in the requested range.
    """
    enter = transactions.enter_unseen if requested else transactions.enter_partial
    if base.lsn == lsn:
        for started in base.open_transactions:
            enter(started.xid, INVALID_XID, started.first_lsn)
        for xid, top_xid in base.top_of.items():
            enter(xid, top_xid, lsn)
    for store in (store for mirror in base.mirrors.values() for store in (mirror.store, mirror.shared.store)):
        for xid in store.open:
            enter(xid, INVALID_XID, base.lsn)
        for xid, top_xid in store.top_of.items():
            enter(xid, top_xid, base.lsn)
