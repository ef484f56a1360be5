"""Archived WAL as the groups of a builder."""

from collections.abc import Iterator

from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.decode.transactions.reorder_buffer.committed_run import CommittedRun
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.model.change import ChangeGroup
from tidemark.runtime.replay.commit_times import TimeRange
from tidemark.runtime.replay.decode_run import InvalidWal
from tidemark.runtime.replay.history_start import HistoryStart, LsnRange
from tidemark.runtime.replay.offline import decode_archive


def archived_groups(
    archive: ArchiveFolder, start: HistoryStart, builder: GroupBuilder, lsns: LsnRange, times: TimeRange | None = None
) -> Iterator[ChangeGroup]:
    """Yield the groups that the changes in a range fill, of the tables that `builder` selects.

    The last group may remain in the builder. Invalid bytes in the last segment are the end of WAL.
    """
    start.decoding.decoder.select_only(builder.selects)
    for decoded in decode_archive(archive, start, lsns, _is_the_end, times):
        if isinstance(decoded, CommittedRun):
            yield from builder.add_run(decoded)
        elif isinstance(decoded, CommittedTransaction):
            yield from builder.add_transaction(decoded)
        else:
            yield from builder.add_message(decoded, start.decoding.decoder.restart_lsn)


def _is_the_end(_error: InvalidWal) -> None:
    """Do nothing."""
