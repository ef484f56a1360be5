"""Selects a range of an archive by commit time, in the server's clock.

A transaction counts by the time in its commit record, which `pg_xact_commit_timestamp` shows. A message outside
transactions has no time; it counts by the last transaction delivered before it.

Commit records are not in the order of their times: sessions read the clock before they write the record, and a clock
may be set back. So the range that is read is wider by `CLOCK_BACK_S` at both ends; if the clock was set back by more,
transactions of the range may be outside of that. A range of LSNs does not have this problem.
"""

from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate, groupby
from typing import NamedTuple

from tidemark.decode.transactions.decoder import Decoded, DecodedRun
from tidemark.decode.transactions.reorder_buffer.committed_run import CommittedRun
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.io.archive.archive import ArchiveFolder, Hole
from tidemark.io.state.history_files import NoBase
from tidemark.model.commit_time import USECS_PER_SECOND, CommitTime
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import INVALID_LSN, Lsn, format_lsn
from tidemark.runtime.replay.archive_blocks import archived_blocks
from tidemark.runtime.replay.history_start import WalTrimmed
from tidemark.wal.page import RecordBlock
from tidemark.wal.rmgr import xact
from tidemark.wal.rmgr.end_times import NOT_READ, find_ends
from tidemark.wire.state.history_index import HistoryIndex

CLOCK_BACK_S = 600  # for a server's clock that is corrected in steps; a slewed clock never goes back


class RecordedEnd(NamedTuple):
    """A commit or an abort record, and its time."""

    lsn: Lsn
    time: CommitTime


class TransactionTimes:
    """The ends of transactions in a block, in order: as columns, since most WAL consists of small transactions."""

    def __init__(self, block: RecordBlock) -> None:
        self._block = block
        self._indices, self.times_us = array("q", [0]) * len(block), array("q", [0]) * len(block)
        columns = block.rmgrs, block.infos, block.offsets, block.lengths
        count = find_ends(block.linear, *columns, len(block), self._indices, self.times_us)
        del self._indices[count:], self.times_us[count:]
        if NOT_READ in self.times_us:
            self._parse_others()

    def __len__(self) -> int:
        return len(self.times_us)

    def end(self, number: int) -> RecordedEnd:
        """Return one end as an object."""
        return RecordedEnd(Lsn(self._block.lsns[self._indices[number]]), CommitTime(self.times_us[number]))

    def first_from(self, time: CommitTime) -> RecordedEnd | None:
        """Return the first end at or after `time`."""
        if not self.times_us or max(self.times_us) < time.us:
            return None
        return self.end(next(number for number, time_us in enumerate(self.times_us) if time_us >= time.us))

    def first_behind(self, latest_us: int, behind_us: int) -> RecordedEnd | None:
        """Return the first end that is more than `behind_us` behind the latest time before it, at least `latest_us`."""
        if not self.times_us or min(self.times_us) >= max(latest_us, *self.times_us) - behind_us:
            return None
        before = accumulate(self.times_us, max, initial=latest_us)
        pairs = enumerate(zip(self.times_us, before, strict=False))
        number = next((number for number, (time_us, latest) in pairs if time_us < latest - behind_us), None)
        return None if number is None else self.end(number)

    def _parse_others(self) -> None:
        """Parse the records that the kernel has not read."""
        for number, index in enumerate(self._indices):
            if self.times_us[number] == NOT_READ:
                ended = xact.parse(self._block.record(index), self._block.format)
                assert isinstance(ended, xact.Commit | xact.Abort)
                self.times_us[number] = ended.time_us


class TimeRange:
    """The requested range [from, to), open at an end that is None. It observes all read and decoded records."""

    def __init__(self, from_time: CommitTime | None = None, to_time: CommitTime | None = None) -> None:
        if from_time is not None and to_time is not None and from_time > to_time:
            text = f"{from_time} comes after {to_time}, the end of the range"
            raise ConfigError(text, hint="give the earlier time as --from")
        self.from_time = from_time
        self.to_time = to_time
        self.latest: CommitTime | None = None  # of all transaction ends that were read
        self.set_back: RecordedEnd | None = None  # the first end that is too far behind the latest
        self._last: CommitTime | None = None  # of the decoded transactions

    def read(self, block: RecordBlock) -> None:
        """Observe the commit times of a block."""
        if self.is_everything:
            return
        ends = TransactionTimes(block)
        if not ends:
            return
        latest_us = ends.times_us[0] if self.latest is None else self.latest.us
        if self.set_back is None:
            self.set_back = ends.first_behind(latest_us, CLOCK_BACK_S * USECS_PER_SECOND)
        self.latest = CommitTime(max(latest_us, *ends.times_us))

    @property
    def is_everything(self) -> bool:
        """Return whether the range is open at both ends."""
        return self.from_time is None and self.to_time is None

    def within(self, decoded: Iterable[DecodedRun]) -> Iterator[DecodedRun]:
        """Yield the runs in the range; release the others."""
        for found in decoded:
            if isinstance(found, CommittedRun):
                yield from self._parts_within(found)
            elif self._holds(found):
                yield found
            elif isinstance(found, CommittedTransaction):
                found.release()

    def _parts_within(self, run: CommittedRun) -> Iterator[CommittedRun]:
        """Yield the parts of a run that are in the range: mostly all of it, or nothing."""
        times_us = run.ends.times_us
        self._last = CommitTime(times_us[-1])
        earliest, latest = CommitTime(min(times_us)), CommitTime(max(times_us))
        if self._includes(earliest) and self._includes(latest):
            yield run
        elif (self.from_time is None or latest >= self.from_time) and (self.to_time is None or earliest < self.to_time):
            start = 0
            for included, stretch in groupby(self._includes(CommitTime(time_us)) for time_us in times_us):
                stop = start + sum(1 for _ in stretch)
                if included:
                    yield run.cut(start, stop)
                start = stop

    def _holds(self, decoded: Decoded) -> bool:
        """Return whether `decoded` is in the range; call it in commit order."""
        if isinstance(decoded, CommittedTransaction):
            self._last = CommitTime(decoded.end.commit_time_us)
        return self.from_time is None if self._last is None else self._includes(self._last)

    def _includes(self, time: CommitTime) -> bool:
        return (self.from_time is None or time >= self.from_time) and (self.to_time is None or time < self.to_time)

    @property
    def is_reached(self) -> bool:
        """Return whether a transaction has ended at or after the range's end, or whether the range has none."""
        return self.to_time is None or (self.latest is not None and self.latest >= self.to_time)

    @property
    def is_passed(self) -> bool:
        """Return whether no later transaction can be in the range."""
        if self.to_time is None or self.latest is None:
            return False
        return self.latest.earlier_by(CLOCK_BACK_S) >= self.to_time


def begin_lsn(archive: ArchiveFolder, index: HistoryIndex, time: CommitTime) -> Lsn:
    """Return an LSN after a catalog base such that no earlier commit has a time at or after `time`."""
    wanted = time.earlier_by(CLOCK_BACK_S)
    lsn = _base_before(archive, index, time, wanted)
    for ends in _ends_from(archive, lsn):
        found = ends.first_from(wanted)
        lsn = (found or ends.end(len(ends) - 1)).lsn
        if found is not None:
            break
    return lsn


def first_end_lsn(archive: ArchiveFolder, index: HistoryIndex, time: CommitTime) -> Lsn | None:
    """Return the first end of a transaction, in the order of WAL, with a time at or after `time`; None: there is none.

    Later ones may have earlier times.
    """
    for ends in _ends_from(archive, begin_lsn(archive, index, time)):
        found = ends.first_from(time)
        if found is not None:
            return found.lsn
    return None


def _base_before(archive: ArchiveFolder, index: HistoryIndex, time: CommitTime, wanted: CommitTime) -> Lsn:
    """Return the LSN of the newest base after which the clock was before `wanted`; for the oldest base: before `time`.

    If the WAL of a base is trimmed, the first WAL in the folder takes its place; a base whose WAL is not archived
    yet is skipped.
    """
    first_wal_lsn, oldest = archive.first_lsn(), min((base.lsn for base in index.bases), default=INVALID_LSN)
    lsn, first, is_trimmed = INVALID_LSN, None, False
    for base_lsn in sorted((base.lsn for base in index.bases), reverse=True):
        lsn, is_trimmed = max(base_lsn, first_wal_lsn), base_lsn < first_wal_lsn
        try:
            first = next((ends.end(0) for ends in _ends_from(archive, lsn)), None)
        except Hole:
            if is_trimmed or base_lsn == oldest or archive.next_wal_after(lsn) is not None:
                raise
            continue
        if (first is not None and first.time < wanted) or is_trimmed:
            break
    if first is not None and first.time < time:
        return lsn
    begins = "" if first is None else f" begins with {first.time}, at {format_lsn(first.lsn)}"
    if is_trimmed:
        raise WalTrimmed(f"{archive.folder} has no WAL for {time}: {'it' + begins if begins else 'no commit in it'}")
    raise NoBase(f"no catalog base for {time}: {'the oldest' + begins if begins else 'there is none'}")


def _ends_from(archive: ArchiveFolder, lsn: Lsn) -> Iterator[TransactionTimes]:
    """Yield the ends of the transactions from `lsn` on, block by block; a block without any is skipped."""
    return filter(len, map(TransactionTimes, archived_blocks(archive, lsn)))
