"""Puts batches of one table into stream order if its versions or partitions alternate in the stream."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.model.change import ChangeBatch

_POSITION = ("_commit_lsn", "_ordinal")  # NB: without timeline: a commit on a later timeline also has a later LSN


def in_stream_order(batches: Sequence[ChangeBatch]) -> Sequence[ChangeBatch]:
    """Return the rows of `batches`, each in stream order, as batches that are in stream order together.

    A batch has rows of one version, so it ends where the next row has another version.
    """
    if len(batches) < 2 or all(_position(left, -1) < _position(right, 0) for left, right in pairwise(batches)):
        return batches
    versions = {relation: number for number, relation in enumerate({batch.relation: None for batch in batches})}
    unpacked = [batch.rows for batch in batches]
    lengths = [rows.num_rows for rows in unpacked]
    lsns, ordinals = (np.concatenate([rows.column(name).to_numpy() for rows in unpacked]) for name in _POSITION)
    order = np.lexsort((ordinals, lsns))
    version = np.repeat([versions[batch.relation] for batch in batches], lengths)
    # `tables` has the rows of one version after another; `at` is each row's index in its version.
    at = np.empty(len(order), np.int64)
    for number in versions.values():
        of_version = version == number
        at[of_version] = np.arange(int(of_version.sum()))
    tables = [
        pa.Table.from_batches(
            [rows for batch, rows in zip(batches, unpacked, strict=True) if batch.relation == relation]
        )
        for relation in versions
    ]
    relations = list(versions)
    return [
        ChangeBatch(batches[0].database, relations[number], _selected_rows(tables[number], at[rows]))
        for number, rows in _runs(order, version)
    ]


def _runs(order: npt.NDArray[np.int64], version: npt.NDArray[np.int64]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Split the rows, numbered in stream order, where the version changes."""
    sorted_versions = version[order]
    cuts = np.flatnonzero(np.diff(sorted_versions)) + 1
    for rows in np.split(order, cuts):
        yield int(version[rows[0]]), rows


def _selected_rows(table: pa.Table, rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
    return table.take(pa.array(rows)).combine_chunks().to_batches()[0]


def _position(batch: ChangeBatch, row: int) -> tuple[int, int]:
    rows = batch.rows
    lsn, ordinal = (rows.column(name)[row].as_py() for name in _POSITION)
    return lsn, ordinal
