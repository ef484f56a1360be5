"""The catalog history over a long time: it keeps what a restart or a requested past needs, and nothing older.

After each step every possible request is made: any confirmed pointer, and any LSN within `archive.keep_bytes` below
it, has a base at or before it, and the journal is complete from there on. The size of the history is bounded by the
WAL that can still be requested, at any age.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.forged.byte_targets.small_base import BASE
from tidemark.decode.catalog.history import load_base
from tidemark.io.archive.trimming import history_horizon_lsn
from tidemark.io.state.history_files import HistoryWriter, base_for, journal_entries
from tidemark.model.lsn import INVALID_LSN, Lsn, TimelineId, Xid
from tidemark.wal.record import Record
from tidemark.wire.state.history_index import BaseEntry, HistoryIndex, JournalMark

BASE_EVERY = 10_000  # bytes of WAL, as history.base_every_bytes
JOURNAL_FILE = 2_000  # bytes, as history.journal_file_bytes
RECORD_BYTES = 200
BEGIN = Lsn(1 << 20)
SMALL = load_base(BASE.read_bytes(), str(BASE))


class WrittenHistory:
    """A history that is written as by the decode thread, and its positions."""

    def __init__(self, folder: Path, keep_bytes: int) -> None:
        self.folder = folder
        self.keep_bytes = keep_bytes
        self.index = HistoryIndex()
        self.journalled: list[Lsn] = []
        self.writer = HistoryWriter(
            folder,
            self.index,
            JournalMark(),
            major=SMALL.major,
            system_identifier=SMALL.system_identifier,
            file_bytes_max=JOURNAL_FILE,
            file_mode=0o600,
            store=self.store,
        )
        self.lsn = self.base_lsn = self.confirmed = BEGIN
        self.writer.write_base(replace(SMALL, lsn=BEGIN), BEGIN)

    def store(self, index: HistoryIndex) -> None:
        self.index = index

    @property
    def horizon(self) -> Lsn:
        return max(BEGIN, history_horizon_lsn(self.confirmed, self.keep_bytes))

    def write(self, wal_bytes: int, *, confirm: float) -> None:
        """Append a catalog change after this amount of WAL; confirm a part of the unconfirmed WAL."""
        self.lsn = Lsn(self.lsn + wal_bytes)
        raw = bytes(RECORD_BYTES)
        end = Lsn(self.lsn + RECORD_BYTES)
        record = Record(self.lsn, end, INVALID_LSN, Xid(7), Xid(0), 0, 10, 0, (), b"", raw)
        self.writer.append(record, TimelineId(1), Xid(7))
        self.journalled.append(self.lsn)
        self.lsn = end
        if self.lsn - self.base_lsn >= BASE_EVERY:
            self.writer.write_base(replace(SMALL, lsn=self.lsn), self.confirmed)
            self.writer.prune(self.horizon, every_second_inner)
            self.base_lsn = self.lsn
        self.confirmed = Lsn(self.confirmed + int((self.lsn - self.confirmed) * confirm))

    def check(self) -> None:
        """Check that the history has everything that may be requested, and no more."""
        for wanted in {self.horizon, self.confirmed, self.lsn, Lsn((self.horizon + self.lsn) // 2)}:
            begin = base_for(self.index, wanted).lsn
            entries = journal_entries(self.folder, self.index, JournalMark(), begin)
            found = [entry.lsn for entry in entries if entry.lsn >= begin]
            assert found == [lsn for lsn in self.journalled if lsn >= begin]
        files = {base.file for base in self.index.bases} | {journal.file for journal in self.index.journals}
        assert {path.name for path in self.folder.iterdir()} == files

    def assert_bounded(self, horizon_when_pruned: Lsn) -> None:
        """Check that the size is bounded by the WAL above the horizon when the last base was written."""
        span = self.lsn - horizon_when_pruned
        assert len(self.index.bases) <= span // BASE_EVERY + 2
        oldest = min(base.lsn for base in self.index.bases)
        since = sum(1 for lsn in self.journalled if lsn >= oldest)
        size = sum((self.folder / journal.file).stat().st_size for journal in self.index.journals)
        entries_per_file = JOURNAL_FILE // RECORD_BYTES
        assert size <= (since + entries_per_file) * 2 * RECORD_BYTES


def every_second_inner(bases: Sequence[BaseEntry]) -> Sequence[BaseEntry]:
    return bases[1:-1:2]


@settings(max_examples=examples(25))
@given(
    st.lists(st.tuples(st.integers(100, 4000), st.sampled_from([0.0, 0.5, 1.0])), min_size=20, max_size=60),
    st.sampled_from([0, 15_000]),
)
def test_the_history_stays_bounded_while_every_confirmed_pointer_stays_restartable(
    steps: list[tuple[int, float]], keep_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as made:
        kept = WrittenHistory(Path(made), keep_bytes)
        pruned_at = BEGIN
        for wal_bytes, confirm in steps:
            base_lsn, horizon = kept.base_lsn, kept.horizon
            kept.write(wal_bytes, confirm=confirm)
            if kept.base_lsn != base_lsn:
                pruned_at = horizon
            kept.check()
            kept.assert_bounded(pruned_at)
        kept.writer.close()
