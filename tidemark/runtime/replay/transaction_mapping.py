"""Reads WAL once for the map of its transactions, by the decoder with no table selected: little more than framing.

The map is kept in the state's history folder, beside the journal, and continued by the next command at its last cut. It
is derived from WAL: a damaged or older file, or one of another archive, is replaced, never an error.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tidemark.decode.catalog.history import dump_entry, entries_from
from tidemark.engine.wal_ranges import OpenAtStart, RangeStart
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.host.disk import remove_unfinished, replace_file
from tidemark.io.state.history_files import base_for, ignore_damaged_base
from tidemark.io.state.state_views import StateView
from tidemark.model.errors import StateError, TidemarkError
from tidemark.model.lsn import INVALID_LSN, INVALID_XID, Lsn, Xid
from tidemark.model.transaction_map import (
    CUTS_MAX,
    OPEN_MAX,
    OPEN_SUM_MAX,
    Cut,
    OpenAtCut,
    TransactionMap,
    within_bounds,
)
from tidemark.runtime.replay.decode_run import MEMORY_BYTES_DEFAULT, InvalidWal
from tidemark.runtime.replay.end_marks import ends_in, last_shared_end, mark_of
from tidemark.runtime.replay.history_start import enter_open, start_at
from tidemark.runtime.replay.offline import in_cells
from tidemark.runtime.replay.range_start import catalogs_at, pass_over
from tidemark.wal.page import RecordBlock
from tidemark.wal.record import RawRecord, Record
from tidemark.wal.rmgr import xact
from tidemark.wal.segments import first_page_lsn
from tidemark.wire.transaction_map import KeptMap, dump_map, load_map

MAP_FILE = "transaction-map"
JOURNAL_BYTES_MAX = 256 << 20  # of catalog changes in a map; WAL with more is not mapped further, and is one range


class JournalFull(StateError):
    """The mapped WAL has more catalog changes than a map may contain."""


@dataclass(frozen=True, slots=True)
class MappedWal:
    """A map, and why it ends where it does."""

    kept: KeptMap
    wal_end: InvalidWal | None = None  # invalid bytes in the last segment, which are the end of WAL
    stopped_by: TidemarkError | None = None  # an error that decoding must meet again

    @property
    def is_complete(self) -> bool:
        """Return whether no transaction that is requested commits after the map."""
        return self.stopped_by is None


def map_wal(
    view: StateView,
    folder: Path,
    archive: ArchiveFolder,
    *,
    cell_bytes: int,
    from_lsn: Lsn,
    to_lsn: Lsn | None,
    map_file: Path,
    file_mode: int,
) -> MappedWal:
    """Return the map of the archive's WAL from `from_lsn`, or earlier, up to `to_lsn` or its end; keep it in a file.

    `from_lsn` is at or after a catalog base. `folder` has the catalog history.
    """
    known = kept_map(map_file, archive, cell_bytes)
    base_lsn = base_for(view.history, from_lsn).lsn
    if known is None or not known.transactions.start_lsn <= from_lsn or known.transactions.end_lsn < base_lsn:
        known = KeptMap(TransactionMap(archive.system_identifier, cell_bytes, base_lsn, base_lsn))
    if to_lsn is not None and known.transactions.cuts and known.transactions.cuts[-1].lsn >= to_lsn:
        return MappedWal(known)
    mapping = _MapPass(view, folder, known)
    found = mapping.read(archive, to_lsn)
    lasting = mapping.known(is_whole=False)
    if lasting.transactions.cuts != known.transactions.cuts:
        with suppress(StateError):  # a folder that cannot be written: the map is made again the next time
            remove_unfinished(map_file)
            replace_file(map_file, dump_map(lasting), file_mode)
    return found


def kept_map(path: Path, archive: ArchiveFolder, cell_bytes: int) -> KeptMap | None:
    """Return the kept map up to where its WAL is proven to be that of the archive; None if it is of no use."""
    try:
        kept = load_map(path.read_bytes(), str(path))
    except (OSError, StateError):
        return None
    found = kept.transactions
    if (found.system_identifier, found.cell_bytes) != (archive.system_identifier, cell_bytes):
        return None
    shared = last_shared_end(archive, [*(cut.last_end for cut in found.cuts), found.last_end])
    cuts = [cut for cut in found.cuts if cut.lsn <= shared.lsn]
    if not cuts:
        return None
    end_lsn = cuts[-1].lsn
    if len(cuts) < len(found.cuts):
        cuts = [replace(cut, open=tuple(_without_later_commit(each, end_lsn) for each in cut.open)) for cut in cuts]
    return KeptMap(replace(found, cuts=tuple(cuts), end_lsn=end_lsn, last_end=shared), kept.journal)


def _without_later_commit(each: OpenAtCut, end_lsn: Lsn) -> OpenAtCut:
    return replace(each, commit_lsn=INVALID_LSN) if each.commit_lsn >= end_lsn else each


def map_without_base(
    view: StateView, folder: Path, archive: ArchiveFolder, *, cell_bytes: int, begin_lsn: Lsn, to_lsn: Lsn | None
) -> MappedWal:
    """Return the map from `begin_lsn` on, where no catalog base is: its WAL begins after that of the newest base.

    NB: it is not kept, and its cuts start no range: before the first requested commit, they lack transactions that
    began before the WAL of the archive.
    """
    known = KeptMap(TransactionMap(archive.system_identifier, cell_bytes, begin_lsn, begin_lsn))
    return _MapPass(view, folder, known).read(archive, to_lsn)


class _MapPass:
    """One pass over the WAL after what is `known`."""

    def __init__(self, view: StateView, folder: Path, known: KeptMap) -> None:
        self._map = known.transactions
        self._cuts = list(known.transactions.cuts)
        self._open_sum = sum(cut.open_count for cut in self._cuts)
        self._last_end = known.transactions.last_end
        self._commits: dict[tuple[Xid, Lsn], Lsn] = {}  # of transactions that were open at a cut
        self._waiting: dict[Xid, Lsn] = {}  # those that have not ended, and their first LSNs
        last = self._cuts[-1] if self._cuts else None
        lsn = self._map.start_lsn if last is None else last.lsn
        self._journal = bytearray(_entries_before(known.journal, lsn))
        base = catalogs_at(view, folder, known, lsn, ignore_damaged_base)
        # NB: `to_lsn`: nothing is requested, so no error in a row or an old transaction ends the pass.
        self._start = start_at(
            view,
            base,
            lsn,
            from_lsn=None,
            to_lsn=lsn,
            next_xid=None if last is None else last.next_xid,
            memory_bytes=MEMORY_BYTES_DEFAULT,
            journal=self._write,
        )
        if last is not None:
            pass_over(self._start, _all_open(last))
            self._waiting = {each.xid: each.first_lsn for each in last.open if each.commit_lsn == INVALID_LSN}
        enter_open(self._start.decoding.decoder.transactions, base, lsn, requested=False)
        for known_open in self._start.decoding.decoder.transactions:
            known_open.passed_over = known_open.partial
        self._start.decoding.decoder.select_only(lambda _: False)
        self._start.decoding.watch = self._find_commits

    def read(self, archive: ArchiveFolder, to_lsn: Lsn | None) -> MappedWal:
        """Read up to `to_lsn` or the end."""
        start, cell_bytes = self._start, self._map.cell_bytes
        wal_end: InvalidWal | None = None
        stopped_by: TidemarkError | None = None
        try:
            for wal_slice in in_cells(archive.read(first_page_lsn(start.lsn)), cell_bytes):
                for decoded in start.decoding.feed_runs(wal_slice):
                    del decoded  # it has no rows
                if wal_slice.end_lsn % cell_bytes == 0:
                    self._add_cut()
                if to_lsn is not None and start.decoded_lsn >= to_lsn:
                    break
        except InvalidWal as error:
            stopped_by = archive.damage(error.invalid.lsn, error.invalid.reason)
            wal_end = None if stopped_by is not None else error
        except TidemarkError as error:
            stopped_by = error
        return MappedWal(self.known(is_whole=True), wal_end, stopped_by)

    def known(self, *, is_whole: bool) -> KeptMap:
        """Return the map, up to the last cut or as a whole."""
        cuts = [
            replace(cut, open=tuple(self._with_commit(each) for each in cut.open)) if cut.open else cut
            for cut in self._cuts
        ]
        last_lsn = cuts[-1].lsn if cuts else self._map.start_lsn
        end_lsn = self._start.decoded_lsn if is_whole else last_lsn
        if not is_whole:
            cuts = [
                replace(cut, open=tuple(_without_later_commit(each, last_lsn) for each in cut.open)) for cut in cuts
            ]
        found = replace(self._map, cuts=tuple(cuts), end_lsn=end_lsn, last_end=self._last_end)
        return KeptMap(found, bytes(self._journal))

    def _with_commit(self, each: OpenAtCut) -> OpenAtCut:
        commit_lsn = self._commits.get((each.xid, each.first_lsn))
        return each if commit_lsn is None else replace(each, commit_lsn=commit_lsn)

    def _write(self, record: Record | RawRecord) -> None:
        decoder = self._start.decoding.decoder
        self._journal += dump_entry(record, decoder.timeline, decoder.transactions.top(record.xid))
        if len(self._journal) > JOURNAL_BYTES_MAX:
            raise JournalFull(f"more than {JOURNAL_BYTES_MAX} bytes of catalog changes")

    def _find_commits(self, block: RecordBlock) -> None:
        """Find the last end of a transaction, and the commits of transactions that were open at a cut."""
        indices = ends_in(block)
        if indices:
            self._last_end = mark_of(block, indices[-1])
        for index in indices if self._waiting else ():
            opcode = block.infos[index] & xact.OPCODE_MASK
            xid = Xid(block.xids[index])
            if opcode in (xact.COMMIT_PREPARED, xact.ABORT_PREPARED):
                ended = xact.parse(block.record(index), block.format)
                assert isinstance(ended, xact.Commit | xact.Abort)
                xid = ended.xid
            first_lsn = self._waiting.pop(xid, None)
            if first_lsn is not None and opcode in (xact.COMMIT, xact.COMMIT_PREPARED):
                self._commits[xid, first_lsn] = Lsn(block.lsns[index])

    def _add_cut(self) -> None:
        """Add a cut after the records decoded so far."""
        start = self._start
        lsn = start.decoding.framer.position
        last_lsn = self._cuts[-1].lsn if self._cuts else self._map.start_lsn
        transactions = start.decoding.decoder.transactions
        is_too_much = transactions.open_count + len(transactions.top_of) > OPEN_MAX
        if lsn <= last_lsn or is_too_much or start.mirrors.is_growing:
            return
        found = tuple(OpenAtCut(known.xid, known.first_lsn) for known in transactions)
        self._waiting = {each.xid: each.first_lsn for each in found}
        top_of = tuple(transactions.top_of.items())
        self._cuts.append(Cut(lsn, transactions.next_xid, found, top_of, self._last_end))
        self._open_sum += self._cuts[-1].open_count
        if len(self._cuts) > CUTS_MAX or self._open_sum > OPEN_SUM_MAX:
            self._drop_cuts()

    def _drop_cuts(self) -> None:
        """Keep the map within its bounds."""
        self._cuts = within_bounds(self._cuts, CUTS_MAX, OPEN_SUM_MAX)
        self._open_sum = sum(cut.open_count for cut in self._cuts)
        at_cuts = {(each.xid, each.first_lsn) for cut in self._cuts for each in cut.open}
        self._commits = {key: lsn for key, lsn in self._commits.items() if key in at_cuts}


def _all_open(cut: Cut) -> RangeStart:
    """Return a start at a cut that owns nothing."""
    opened = tuple(OpenAtStart(each.xid, INVALID_XID, each.first_lsn) for each in cut.open)
    children = tuple(OpenAtStart(child, top, cut.lsn) for child, top in cut.top_of)
    return RangeStart(cut.lsn, cut.next_xid, (*opened, *children))


def _entries_before(journal: bytes, lsn: Lsn) -> bytes:
    """Return the entries that begin before `lsn`."""
    stop = 0
    for entry, end in entries_from(journal, 0):
        if entry.lsn >= lsn:
            break
        stop = end
    return journal[:stop]
