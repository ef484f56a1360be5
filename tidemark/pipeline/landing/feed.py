"""Builds a batch of the lake from outbox values: sorts them, checks that they are complete, and decodes them."""

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.model.change import NO_COMMIT_TIME
from tidemark.model.errors import InternalError
from tidemark.model.lsn import Lsn
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.sinks.lake_batch import LakeBatch, LakeItem
from tidemark.pipeline.source.opened_values import INCOMPLETE
from tidemark.pipeline.source.outbox_port import OutboxPort
from tidemark.wire.values import HEADER_BYTES, ValueHeader, ValueKind


@dataclass(frozen=True, slots=True, eq=False)
class Feed:
    """A batch and its figures for metrics and logs."""

    lake_batch: LakeBatch
    row_count: int
    byte_count: int
    commit_lsn: Lsn
    commit_times_us: tuple[int, ...]  # of the newest commit in each group
    commit_lsns: tuple[Lsn, ...]  # of the same commits


def make_feed(headers: Sequence[ValueHeader], items: Sequence[LakeItem], outbox: str) -> Feed:
    """Return the batch of whole groups in order with the given `items`."""
    last = headers[-1]
    ends = [header for header in headers if header.ends_group and header.commit_time_us]
    return Feed(
        LakeBatch(
            outbox,
            last.sequence,
            last.pointer.position,
            items,
            max((end.commit_time_us for end in ends), default=NO_COMMIT_TIME),
        ),
        sum(header.row_count for header in headers if header.kind is ValueKind.BATCH),
        sum(HEADER_BYTES + header.payload_length for header in headers),
        last.pointer.position.commit_lsn,
        tuple(end.commit_time_us for end in ends),
        tuple(end.pointer.position.commit_lsn for end in ends),
    )


def newest_commit(outbox: OutboxPort, feed: Feed) -> tuple[OutboxSequence, Lsn]:
    """Return the sequence and the commit LSN of the newest value, when a batch was confirmed."""
    head = outbox.head()
    if head <= feed.lake_batch.end:  # NB: the outbox may have trimmed it
        return head, feed.commit_lsn
    return head, outbox.headers(OutboxSequence(head - 1), head)[-1].pointer.position.commit_lsn


def check_complete(first: ValueHeader, last: ValueHeader) -> None:
    """Raise `InternalError` unless values from `first` to `last` are whole groups."""
    if first.sequence != first.group_first or last.sequence != last.group_last:
        had, wanted = (first.sequence, last.sequence), (first.group_first, last.group_last)
        raise InternalError(f"{INCOMPLETE}: {had[0]} to {had[1]} of {wanted[0]} to {wanted[1]}")
