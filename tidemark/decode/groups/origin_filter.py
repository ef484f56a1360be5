"""Leaves out rows by their replication origin.

A record has the number of its session's origin; the names are in `pg_replication_origin`, which all databases share,
and in no WAL record of a change. As in the server (`FilterByOrigin`, decode.c), the commit's origin decides for a
transaction, and a change's origin for the change. Schema events are never left out, since later rows are read with
them; neither are rewritten rows, since they replace existing rows.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tidemark.decode.datum.row_entries import ENTRY_BYTES, ORIGIN_AT
from tidemark.model.change import Op
from tidemark.model.origins import ExcludedOrigins

_REWRITE = ord(Op.REWRITE.value)


def kept_rows(
    entries: bytearray, start: int, stop: int, excluded: ExcludedOrigins, commit_origin: int
) -> Iterator[tuple[int, int]]:
    """Yield the ranges of rows `start` to `stop` that are not left out."""
    octets = np.frombuffer(entries, np.uint8).reshape(-1, ENTRY_BYTES)[start:stop]
    gone = np.ones(len(octets), np.bool_) if excluded.holds(commit_origin) else _excluded_rows(octets, excluded)
    gone &= octets[:, 0] != _REWRITE
    cuts = [0, *(np.flatnonzero(np.diff(gone)) + 1).tolist(), len(octets)]
    for begin, end in pairwise(cuts):
        if begin < end and not gone[begin]:
            yield start + begin, start + end


def has_excluded(entries: bytes, excluded: ExcludedOrigins) -> bool:
    """Return whether one of the rows has an excluded origin."""
    if not excluded:
        return False
    octets = np.frombuffer(entries, np.uint8).reshape(-1, ENTRY_BYTES)
    return bool(_excluded_rows(octets, excluded).any())


def _excluded_rows(octets: npt.NDArray[np.uint8], excluded: ExcludedOrigins) -> npt.NDArray[np.bool_]:
    origins = octets[:, ORIGIN_AT] + (octets[:, ORIGIN_AT + 1].astype(np.uint16) << 8)
    return origins != 0 if excluded.every else np.isin(origins, list(excluded.ids))
