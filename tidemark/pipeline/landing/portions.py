"""Reads a batch of the pipeline's own query: Spark passes the headers of the values, and the driver reads the values.

Inside Spark, values are copied nine times, by three processes. A header is sufficient to plan, order, keep and repeat
a batch. The driver, which confirms to the same outbox, therefore reads the values from the outbox and checks each of
them against its header.

A batch is read in *portions*: whole groups of a bounded number of bytes. Each portion ends in commits. While one is
written, the next is read, so memory contains two portions, whatever the length of the batch.
"""

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.landing.feed import Feed, check_complete, make_feed
from tidemark.pipeline.source.offsets import OutboxReplaced
from tidemark.pipeline.source.opened_values import in_order
from tidemark.pipeline.source.outbox_port import OutboxPort
from tidemark.wire.outbox import OutboxValue
from tidemark.wire.values import HEADER_BYTES, KINDS, ValueHeader, ValueKind, decode_header

PORTION_BYTES = 64 << 20
ITEMS = KINDS - {ValueKind.TRANSACTIONS}


def feeds(headers: pa.Table, outbox: OutboxPort, outbox_id: str, bytes_max: int = PORTION_BYTES) -> Generator[Feed]:
    """Yield the portions of a batch in order; each is read while the previous one is written."""
    with ThreadPoolExecutor(1, "tidemark-portion") as pool:
        ahead: Future[Feed] | None = None
        for portion in portions(headers, bytes_max):
            reading = pool.submit(_read, portion, outbox, outbox_id)
            if ahead is not None:
                yield ahead.result()
            ahead = reading
        if ahead is not None:
            yield ahead.result()


def portions(headers: pa.Table, bytes_max: int) -> Iterator[Sequence[ValueHeader]]:
    """Split the headers of a batch at group ends: at least one group each, then as many as fit into `bytes_max`."""
    portion: list[ValueHeader] = []
    group: list[ValueHeader] = []
    portion_bytes = group_bytes = 0
    headers = in_order(headers)
    for number, blob in zip(headers.column("sequence").to_pylist(), headers.column("value").to_pylist(), strict=True):
        header = decode_header(blob, OutboxSequence(number))
        group.append(header)
        group_bytes += HEADER_BYTES + header.payload_length
        if header.ends_group:
            if portion and portion_bytes + group_bytes > bytes_max:
                yield portion
                portion, portion_bytes = [], 0
            portion += group
            portion_bytes += group_bytes
            group, group_bytes = [], 0
    if portion or group:
        yield [*portion, *group]  # check_complete rejects a group without its end


def _read(headers: Sequence[ValueHeader], outbox: OutboxPort, outbox_id: str) -> Feed:
    check_complete(headers[0], headers[-1])
    values = zip(headers, outbox.read(_before(headers[0]), headers[-1].sequence), strict=True)
    items = [(header.sequence, _matching(header, value).item()) for header, value in values if header.kind in ITEMS]
    return make_feed(headers, items, outbox_id)


def _matching(header: ValueHeader, value: OutboxValue) -> OutboxValue:
    if value.header != header:
        raise OutboxReplaced(f"value {header.sequence} is not the value whose header Spark read")
    return value


def _before(header: ValueHeader) -> OutboxSequence:
    return OutboxSequence(header.sequence - 1)
