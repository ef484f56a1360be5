"""Decoding an archive with a state folder's catalog history and no server running (N04, N05, N06).

What is given out are transactions whose commit record begins in [from, to), and messages outside transactions that do.
Decoding begins earlier: at a saved base that is not above the first record of any transaction that is open at `from`.
Let B be the newest base not above `from`. A transaction open at `from` was open at B or began after it; so nothing is
missed when decoding begins at the least first LSN of the transactions open at B, which B's entry in the index tells.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidemark.decode.decoder import Decoded, Decoder
from tidemark.decode.ports import SpillPort
from tidemark.decode.transactions import CommittedTransaction
from tidemark.io.archive import ArchiveFolder
from tidemark.io.history_files import NoBase, base_for, load_catalogs
from tidemark.io.state import StateView
from tidemark.model.errors import ConfigError, StateError, WalGap
from tidemark.model.lsn import Lsn, Oid, Xid, format_lsn
from tidemark.runtime.decode_run import InvalidWal, WalDecoding
from tidemark.wal.page import Framer
from tidemark.wal.versions import PAGE_BYTES

_XID_MASK = 0xFFFFFFFF


class ArchiveEndsEarly(WalGap):
    """The archive ends before the end of what was asked for."""

    hint = "wait until the segment is archived (pg_switch_wal() on the node hastens it), or ask for less"


class ForeignArchive(ConfigError):
    """An archive of another cluster than the state folder's."""

    hint = "name the archive of the node that the state folder was made for"


@dataclass(frozen=True, slots=True)
class LsnRange:
    """What is asked for: [from, to), each end open where it is None."""

    from_lsn: Lsn | None = None
    to_lsn: Lsn | None = None

    def holds(self, decoded: Decoded) -> bool:
        """Tell if the record that completes `decoded` begins in the range."""
        lsn = decoded.end.commit_lsn if isinstance(decoded, CommittedTransaction) else decoded.lsn
        return (self.from_lsn is None or lsn >= self.from_lsn) and (self.to_lsn is None or lsn < self.to_lsn)


class OfflineRun:
    """One pass over an archive."""

    def __init__(
        self,
        view: StateView,
        history_folder: Path,
        archive: ArchiveFolder,
        wanted: LsnRange,
        *,
        memory_bytes: int,
        spill: SpillPort | None = None,
    ) -> None:
        if archive.system_identifier != view.identity.system_identifier:
            raise ForeignArchive(
                f"{archive.folder} is of system {archive.system_identifier}, "
                f"the state folder of {view.identity.system_identifier}"
            )
        if view.beginning is None:
            raise StateError("the state has no catalog base", hint="finish it by cdcctl init")
        oldest = min((base.lsn for base in view.history.bases), default=None)
        if oldest is None:
            raise NoBase("the state has no catalog base")
        self.wanted = wanted
        self.names = view.beginning.databases
        self._archive = archive
        begin = base_for(view.history, oldest if wanted.from_lsn is None else wanted.from_lsn)
        self.start_lsn = max(begin.restart_lsn, oldest)
        base = load_catalogs(history_folder, view.history, self.start_lsn)
        self.mirrors = base.mirrors
        framer = Framer(
            archive.format,
            system_identifier=archive.system_identifier,
            segment_bytes=archive.segment_bytes,
            timeline=base.timeline,
            start_lsn=self.start_lsn,
        )
        decoder = Decoder(
            archive.format,
            base.timeline,
            base.mirrors,
            next_xid=base.next_xid,
            memory_bytes=memory_bytes,
            spill=spill,
            complete_from=Xid(view.beginning.complete_from & _XID_MASK) if self.start_lsn == oldest else None,
        )
        for started in base.open_transactions:
            if started.first_lsn < self.start_lsn:
                decoder.transactions.enter_partial(started.xid, started.xid, started.first_lsn)
        self.decoding = WalDecoding(framer, decoder, base.timeline)

    @property
    def end_lsn(self) -> Lsn:
        """End of the last record decoded so far."""
        return max(self.decoding.decoder.decoded_lsn, self.start_lsn)

    def decode(self) -> Iterator[Decoded]:
        """Yield what lies in the range, to its end or the archive's."""
        to_lsn = self.wanted.to_lsn
        for segment in self._archive.read(Lsn(self.start_lsn // PAGE_BYTES * PAGE_BYTES)):
            try:
                for decoded in self.decoding.feed(segment):
                    if self.wanted.holds(decoded):
                        yield decoded
                    elif isinstance(decoded, CommittedTransaction):
                        decoded.release()
            except InvalidWal as error:
                damage = self._archive.damage(error.invalid.lsn, error.invalid.reason)
                if damage is not None:
                    raise damage from error
                break  # the unused rest of the last segment
            if to_lsn is not None and self.end_lsn >= to_lsn:
                return
        if to_lsn is not None and self.end_lsn < to_lsn:
            raise ArchiveEndsEarly(
                f"{self._archive.folder} ends at {format_lsn(self.end_lsn)}, before {format_lsn(to_lsn)}"
            )

    def database(self, name: str) -> Oid:
        """Return the OID of a captured database."""
        for oid, known in self.names.items():
            if known == name:
                return oid
        raise ConfigError(f"database {name} is not captured: {', '.join(sorted(self.names.values()))}")
