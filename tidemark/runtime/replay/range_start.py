"""Starts decoding for one range of a plan (`engine.wal_ranges`), with the catalogs as of where its reading begins.

The state's catalog history ends where the capture has decoded; the map of the transactions has the catalog changes of
all mapped WAL. Both begin at a base, so the newest base at or below the start and the entries after it are sufficient.
A map that is not kept may begin elsewhere (`map_without_base`): at an LSN that the state's history covers.
"""

from collections.abc import Callable
from pathlib import Path

from tidemark.decode.catalog.history import Base, entries_from, replay
from tidemark.decode.transactions.ports import SpillPort
from tidemark.engine.wal_ranges import PlannedRange, RangeStart
from tidemark.io.state.history_files import DamagedBase, ignore_damaged_base, load_catalogs
from tidemark.io.state.state_views import StateView
from tidemark.model.errors import StateError
from tidemark.model.lsn import Lsn
from tidemark.runtime.replay.history_start import HistoryStart, enter_open, start_at
from tidemark.wire.transaction_map import KeptMap


def begin_range(
    view: StateView,
    folder: Path,
    kept: KeptMap,
    part: PlannedRange,
    *,
    memory_bytes: int,
    is_requested: bool,
    spill: SpillPort | None = None,
    passed_over: Callable[[DamagedBase], None] = ignore_damaged_base,
) -> HistoryStart:
    """Return a decoder for a range of the plan that has a start.

    `is_requested`: the whole plan begins at an LSN that was given; then a transaction whose WAL is too old is an error.
    """
    assert part.start is not None, "the first range starts from the history"
    start = part.start
    oldest = min(base.lsn for base in view.history.bases)
    lsn = max(start.lsn, oldest)
    base = catalogs_at(view, folder, kept, lsn, passed_over)
    begun = start_at(
        view,
        base,
        lsn,
        from_lsn=part.from_lsn,
        to_lsn=part.to_lsn,
        next_xid=start.next_xid,
        memory_bytes=memory_bytes,
        spill=spill,
    )
    transactions = begun.decoding.decoder.transactions
    enter = transactions.enter_unseen if is_requested else transactions.enter_partial
    for unseen in start.unseen_before(lsn):
        enter(unseen.xid, unseen.top_xid, unseen.first_lsn)
    pass_over(begun, start)
    enter_open(transactions, base, lsn, requested=True)
    return begun


def pass_over(begun: HistoryStart, start: RangeStart) -> None:
    """Skip the transactions that the range does not own."""
    for other in start.passed_over:
        begun.decoding.decoder.transactions.pass_over(other.xid, other.top_xid, other.first_lsn)


def catalogs_at(
    view: StateView, folder: Path, kept: KeptMap, lsn: Lsn, passed_over: Callable[[DamagedBase], None]
) -> Base:
    """Return the catalogs as of `lsn`, which the state's history or the map covers."""
    if view.beginning is None:
        raise StateError("the state has no catalog base", hint="complete it with cdcctl init")
    begins = [base.lsn for base in view.history.bases if kept.transactions.start_lsn <= base.lsn <= lsn]
    begin_lsn = max(begins, default=min(lsn, kept.transactions.start_lsn))
    base = load_catalogs(
        folder,
        view.history,
        view.journal,
        begin_lsn,
        seeded_lsn=view.beginning.lsn,
        passed_over=passed_over,
    )
    if begin_lsn < lsn:
        replay(base, (entry for entry, _ in entries_from(kept.journal, 0)), lsn)
    return base
