"""Beginning to decode at any LSN that the catalog history reaches, from an archive or a stream.

What is given out are transactions whose commit record begins in [from, to), and messages outside transactions that do.
Decoding begins earlier: at a saved base that is not above the first record of any transaction that is open at `from`.
Let B be the newest base not above `from`. A transaction open at `from` was open at B or began after it; so nothing is
missed when decoding begins at the least first LSN of the transactions open at B, which B's entry in the index tells.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidemark.decode.catalog.mirror import CatalogMirror
from tidemark.decode.decoder import Decoded, Decoder
from tidemark.decode.ports import SpillPort
from tidemark.decode.transactions import CommittedTransaction
from tidemark.io.history_files import NoBase, base_for, load_catalogs
from tidemark.io.state import StateView
from tidemark.model.errors import StateError
from tidemark.model.lsn import Lsn, Oid, TimelineId
from tidemark.runtime.decode_run import WalDecoding
from tidemark.wal.page import Framer
from tidemark.wal.versions import wal_format


@dataclass(frozen=True, slots=True)
class LsnRange:
    """What is asked for: [from, to), each end open where it is None."""

    from_lsn: Lsn | None = None
    to_lsn: Lsn | None = None

    def holds(self, decoded: Decoded) -> bool:
        """Tell if the record that completes `decoded` begins in the range."""
        lsn = decoded.end.commit_lsn if isinstance(decoded, CommittedTransaction) else decoded.lsn
        return (self.from_lsn is None or lsn >= self.from_lsn) and (self.to_lsn is None or lsn < self.to_lsn)


@dataclass(frozen=True, slots=True)
class HistoryStart:
    """A decoder that is ready for the WAL from `lsn` on."""

    lsn: Lsn
    timeline: TimelineId
    mirrors: Mapping[Oid, CatalogMirror]
    databases: Mapping[Oid, str]
    decoding: WalDecoding

    @property
    def decoded_lsn(self) -> Lsn:
        """End of the last record decoded so far."""
        return max(self.decoding.decoder.decoded_lsn, self.lsn)


def begin_from_history(
    view: StateView, folder: Path, from_lsn: Lsn | None, *, memory_bytes: int, spill: SpillPort | None = None
) -> HistoryStart:
    """Return a decoder that will give out everything that commits at or after `from_lsn`, None: all that can be had.

    `folder` holds the history's files; raise `NoBase` where `from_lsn` is below the oldest.
    """
    if view.beginning is None:
        raise StateError("the state has no catalog base", hint="finish it by cdcctl init")
    oldest = min((base.lsn for base in view.history.bases), default=None)
    if oldest is None:
        raise NoBase("the state has no catalog base")
    begin = base_for(view.history, oldest if from_lsn is None else from_lsn)
    start_lsn = max(begin.restart_lsn, oldest)
    base = load_catalogs(folder, view.history, start_lsn)
    fmt = wal_format(view.identity.server_major)
    framer = Framer(
        fmt,
        system_identifier=view.identity.system_identifier,
        segment_bytes=view.identity.segment_bytes,
        timeline=base.timeline,
        start_lsn=start_lsn,
    )
    decoder = Decoder(
        fmt,
        base.timeline,
        base.mirrors,
        next_xid=base.next_xid,
        memory_bytes=memory_bytes,
        spill=spill,
        complete_from=view.beginning.complete_from,
    )
    for started in base.open_transactions:
        if started.first_lsn < start_lsn:
            decoder.transactions.enter_partial(started.xid, started.xid, started.first_lsn)
    decoding = WalDecoding(framer, decoder, base.timeline)
    return HistoryStart(start_lsn, base.timeline, base.mirrors, view.beginning.databases, decoding)
