"""Reads a batch of the pipeline's own query: Spark says where it ends, and the driver reads the values.

Inside Spark, values are copied nine times, by three processes. An offset is sufficient to plan, order, keep and repeat
a batch. The driver, which confirms to the same outbox, therefore reads the values from the outbox itself.

A batch is read in *portions*: whole groups of a bounded number of bytes. Each portion ends in commits. While one is
written, the next is read, so memory contains two portions, whatever the length of the batch.
"""

from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from tidemark.model.position import Sequence
from tidemark.pipeline.landing.feed import Feed, check_complete, make_feed
from tidemark.pipeline.sinks.lake_batch import LakeItem
from tidemark.pipeline.source.offsets import OutboxReplaced
from tidemark.pipeline.source.outbox_port import OutboxPort
from tidemark.wire.values import KINDS, ValueHeader, ValueKind

PORTION_BYTES = 64 << 20
ITEMS = KINDS - {ValueKind.TRANSACTIONS}


def feeds(
    outbox: OutboxPort, outbox_id: str, after: Sequence, upto: Sequence, bytes_max: int = PORTION_BYTES
) -> Generator[Feed]:
    """Yield the portions of (after, upto] in order; each is read while the previous one is written.

    Raises `OutboxReplaced` if the outbox has another name than `outbox_id`: then its numbers mean other values.
    """
    with ThreadPoolExecutor(1, "tidemark-portion") as pool:
        ahead: Future[Feed] | None = None
        for first, last in _portions(outbox, after, upto, bytes_max):
            reading = pool.submit(_read, outbox, outbox_id, first, last)
            if ahead is not None:
                yield ahead.result()
            ahead = reading
        if ahead is not None:
            yield ahead.result()


def _portions(
    outbox: OutboxPort, after: Sequence, upto: Sequence, bytes_max: int
) -> Iterator[tuple[Sequence, Sequence]]:
    """Yield ranges that end at group ends: at least one group each, then as many as fit into `bytes_max`."""
    while after < upto:
        end = min(upto, outbox.plan(after, bytes_max))
        yield after, end
        after = end


def _read(outbox: OutboxPort, outbox_id: str, after: Sequence, upto: Sequence) -> Feed:
    headers: list[ValueHeader] = []
    items = list[LakeItem]()
    for value in outbox.read(after, upto):
        headers.append(value.header)
        if value.header.kind in ITEMS:
            items.append((value.header.sequence, value.item()))
    if outbox.outbox_id != outbox_id:  # NB: after the values, which are of this outbox only if it still has its name
        raise OutboxReplaced(f"the outbox was renumbered: it is {outbox.outbox_id}, and the query reads {outbox_id}")
    check_complete(headers[0], headers[-1])
    return make_feed(headers, items, outbox_id)
