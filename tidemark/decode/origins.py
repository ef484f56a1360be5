"""Rows that are left out by their replication origin.

A record names the origin of its session by number; names are in `pg_replication_origin`, which is shared by all
databases, and in no WAL record of a change. As with the server (`FilterByOrigin`, decode.c) a transaction goes by its
commit's origin, and a change by its own. Two things are never left out: schema events, since what follows is read by
them, and rewritten rows, since they replace what is there.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from tidemark.decode.row_entries import ENTRY_BYTES, ORIGIN_AT
from tidemark.model.change import Op
from tidemark.model.origins import ExcludedOrigins

_REWRITE = ord(Op.REWRITE.value)


def kept_rows(
    entries: bytearray, start: int, stop: int, excluded: ExcludedOrigins, commit_origin: int
) -> Iterator[tuple[int, int]]:
    """Give the ranges of rows `start` to `stop` that are not left out."""
    octets = np.frombuffer(entries, np.uint8).reshape(-1, ENTRY_BYTES)[start:stop]
    if excluded.holds(commit_origin):
        gone = np.ones(len(octets), np.bool_)
    else:
        origins = octets[:, ORIGIN_AT] + (octets[:, ORIGIN_AT + 1].astype(np.uint16) << 8)
        gone = origins != 0 if excluded.every else np.isin(origins, list(excluded.ids))
    gone &= octets[:, 0] != _REWRITE
    cuts = [0, *(np.flatnonzero(np.diff(gone)) + 1).tolist(), len(octets)]
    for begin, end in pairwise(cuts):
        if begin < end and not gone[begin]:
            yield start + begin, start + end
