"""Opens the values of the outbox that a query without a table has read."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tidemark.model.change import GroupItem
from tidemark.model.errors import InternalError
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.wire.items import decode_item
from tidemark.wire.values import HEADER_BYTES, ValueKind, decode_header

INCOMPLETE = "a batch of outbox values is incomplete"


def in_order(values: pa.Table) -> pa.Table:
    """Return the values sorted by sequence; raise if one is missing. Sorted values are returned without a copy."""
    sequences = values.column("sequence").to_numpy()
    if not (sequences[1:] > sequences[:-1]).all():
        values, sequences = values.sort_by("sequence"), np.sort(sequences)
    if (np.diff(sequences) != 1).any():
        raise InternalError(f"{INCOMPLETE}: {len(sequences)} of {sequences[0]} to {sequences[-1]}")
    return values


def open_values(values: pa.Table) -> Iterator[tuple[OutboxSequence, GroupItem]]:
    """Decode values of the source `tidemark` in order: change batches, schema events, logical messages and others.

    For users' own queries. A query with `offsetsOnly` has no rows to open.
    """
    values = in_order(values)
    for number, blob in zip(values.column("sequence"), values.column("value"), strict=True):
        sequence, value = OutboxSequence(number.as_py()), blob.as_py()
        header = decode_header(value, sequence)
        if header.kind is not ValueKind.TRANSACTIONS:
            yield sequence, decode_item(header.kind, value[HEADER_BYTES:])
