"""The stored chunks of an outbox, read one by one."""

from tidemark.io.readers.outbox import OutboxReader
from tidemark.model.position import Sequence
from tidemark.wire.keys import parse_slot, slot

StoredChunk = tuple[Sequence, bytes]


def read_singly(outbox: OutboxReader, after: int, upto: int) -> list[StoredChunk]:
    """Return the chunks of the values (after, upto], each with the sequence of its value."""
    found: list[StoredChunk] = []
    with (
        outbox.environment.read() as transaction,
        transaction.cursor(outbox.environment.database("outbox")) as cursor,
    ):
        has_more = cursor.set_range(slot(outbox.scope, Sequence(after + 1), 0))
        while has_more and (key := parse_slot(outbox.scope, cursor.key())) is not None and key[0] <= upto:
            found.append((key[0], cursor.value()))
            has_more = cursor.next()
    return found
