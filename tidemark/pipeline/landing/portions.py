"""Reads a batch of the pipeline's own query: Spark says where it ends, and the driver reads the values.

Inside Spark, values are copied nine times, by three processes. An offset is sufficient to plan, order, keep and repeat
a batch. The driver, which confirms to the same outbox, therefore reads the values from the outbox itself.

A batch is read in *portions*: whole groups of a bounded number of bytes. Each portion ends in commits. While one is
written, the next is read, so memory contains two portions, whatever the length of the batch.
"""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from tidemark.model.change import ChangeBatch
from tidemark.model.position import Sequence
from tidemark.pipeline.lake.positions.table_position import TableId
from tidemark.pipeline.landing.feed import Feed, check_complete, make_feed
from tidemark.pipeline.sinks.lake_batch import LakeItem
from tidemark.pipeline.source.outbox_port import OutboxPort, check_not_renumbered
from tidemark.pipeline.source.rows.unread_rows import UnreadRows, UnreadValues
from tidemark.wire.outbox import OutboxValue
from tidemark.wire.values import KINDS, ValueHeader, ValueKind

PORTION_BYTES = 64 << 20
ITEMS = KINDS - {ValueKind.TRANSACTIONS}


@dataclass(frozen=True, slots=True)
class Writers:
    """Other processes that write the rows of a table with at least so many bytes in a portion, if they are there.

    `bytes_min_of` returns a lower number for a table of which fewer bytes are worth it, else `bytes_min`. `record_read`
    gets the bytes of values that this process reads itself, and the seconds.
    """

    are_there: Callable[[], bool]
    bytes_min: int
    bytes_min_of: Callable[[TableId], int] | None = None
    record_read: Callable[[int, float], None] | None = None

    def take(self, table: TableId, byte_count: int) -> bool:
        """Return whether they write the rows of a table with so many bytes."""
        return byte_count >= (self.bytes_min if self.bytes_min_of is None else self.bytes_min_of(table))


def feeds(
    outbox: OutboxPort,
    outbox_id: str,
    after: Sequence,
    upto: Sequence,
    bytes_max: int = PORTION_BYTES,
    *,
    writers: Writers | None = None,
) -> Generator[Feed]:
    """Yield the portions of (after, upto] in order; each is read while the previous one is written.

    Rows of a table that `writers` take are left unread.

    Raises `OutboxReplaced` if the outbox has another name than `outbox_id`: then its numbers mean other values.
    """
    with ThreadPoolExecutor(1, "tidemark-portion") as pool:
        ahead: Future[Feed] | None = None
        for portion in _portions(outbox, after, upto, bytes_max, writers):
            reading = pool.submit(_read, outbox, outbox_id, portion, writers)
            if ahead is not None:
                yield ahead.result()
            ahead = reading
        if ahead is not None:
            yield ahead.result()


@dataclass(frozen=True, slots=True)
class _Portion:
    """The values of (after, upto]; a small one has less bytes than writers take, or is one group."""

    after: Sequence
    upto: Sequence
    is_small: bool


def _portions(
    outbox: OutboxPort, after: Sequence, upto: Sequence, bytes_max: int, writers: Writers | None
) -> Iterator[_Portion]:
    """Yield ranges that end at group ends: at least one group each, then as many as fit into `bytes_max`.

    Small ones are found for `writers`: this takes another request for the others.
    """
    while after < upto:
        is_small = writers is not None and outbox.plan(after, min(writers.bytes_min, bytes_max)) >= upto
        end = upto if is_small else min(upto, outbox.plan(after, bytes_max))
        yield _Portion(after, end, is_small)
        after = end


def _read(outbox: OutboxPort, outbox_id: str, portion: _Portion, writers: Writers | None) -> Feed:
    after, upto = portion.after, portion.upto
    begun_s, values = time.monotonic(), None
    if writers is not None and portion.is_small:
        values = _small_values(outbox, after, upto, writers)
    if values is None:
        unread = {} if writers is None else _unread(outbox, outbox_id, after, upto, writers)
        begun_s = time.monotonic()  # executors were awaited
        values = _values(outbox, after, upto, unread)
    headers: list[ValueHeader] = []
    items = list[LakeItem]()
    read_bytes = 0
    for header, value in values:
        headers.append(header)
        read_bytes += header.payload_length if isinstance(value, OutboxValue) else 0
        if header.kind in ITEMS:
            items.append((header.sequence, value.item() if isinstance(value, OutboxValue) else value))
    if writers is not None and writers.record_read is not None and read_bytes:
        writers.record_read(read_bytes, time.monotonic() - begun_s)
    check_not_renumbered(outbox, outbox_id)
    check_complete(headers[0], headers[-1])
    return make_feed(headers, items, outbox_id)


def _small_values(
    outbox: OutboxPort, after: Sequence, upto: Sequence, writers: Writers
) -> Iterable[tuple[ValueHeader, OutboxValue | ChangeBatch]] | None:
    """Return the values of a small portion without asking for headers; None: writers are to write rows of it.

    NB: a group may have more bytes than was asked for. Then what was read of it is dropped.
    """
    found = list[tuple[ValueHeader, OutboxValue | ChangeBatch]]()
    byte_counts = Counter[TableId]()
    for value in outbox.read(after, upto):
        header = value.header
        if header.kind is ValueKind.BATCH:
            of = header.database, header.relation
            was_small = not writers.take(of, byte_counts[of])
            byte_counts[of] += header.payload_length
            if was_small and writers.take(of, byte_counts[of]) and writers.are_there():
                return None
        found.append((header, value))
    return found


def _values(
    outbox: OutboxPort, after: Sequence, upto: Sequence, unread: Mapping[Sequence, tuple[ValueHeader, ChangeBatch]]
) -> Iterator[tuple[ValueHeader, OutboxValue | ChangeBatch]]:
    """Yield the values of (after, upto] in order, without reading those that are `unread`."""
    read = outbox.read(after, upto, (lambda header: header.sequence not in unread) if unread else None)
    left = iter(unread.values())
    ahead = next(left, None)
    for value in read:
        while ahead is not None and ahead[0].sequence < value.header.sequence:
            yield ahead
            ahead = next(left, None)
        yield value.header, value
    while ahead is not None:
        yield ahead
        ahead = next(left, None)


def _unread(
    outbox: OutboxPort, outbox_id: str, after: Sequence, upto: Sequence, writers: Writers
) -> dict[Sequence, tuple[ValueHeader, ChangeBatch]]:
    """Return the batches of tables with many bytes in a portion, by sequence, with rows that are not read."""
    batches = [header for header in outbox.headers(after, upto) if header.kind is ValueKind.BATCH]
    byte_counts = Counter[TableId]()
    for header in batches:
        byte_counts[header.database, header.relation] += header.payload_length
    large = {of for of, byte_count in byte_counts.items() if writers.take(of, byte_count)}
    if not large or not writers.are_there():
        return {}
    by_table = {of: [one for one in batches if (one.database, one.relation) == of] for of in large}
    values = {
        of: UnreadValues(outbox, outbox_id, [one.sequence for one in headers], _recorded(writers, byte_counts[of]))
        for of, headers in by_table.items()
    }
    return {
        header.sequence: (
            header,
            ChangeBatch(header.database, outbox.relation(header.schema_version), UnreadRows(values[of], header)),
        )
        for header in batches
        if (of := (header.database, header.relation)) in large
    }


def _recorded(writers: Writers, byte_count: int) -> Callable[[float], None] | None:
    return None if writers.record_read is None else partial(writers.record_read, byte_count)
