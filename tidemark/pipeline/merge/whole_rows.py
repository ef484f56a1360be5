"""Changes of a table without a key, whose old rows WAL contains completely (REPLICA IDENTITY FULL).

Such a replica is a multiset: a delete removes exactly one of the rows that equal its old row, and an update removes one
and adds another. Rows are equal if the lake stores them equally: NULL equals NULL, NaN equals NaN, 0 differs from -0,
and lists are compared by their elements. So the row that the source deletes always has an equal one in the replica, and
it does not matter which of several is removed.

Changes of one run often cancel each other; only the rest is searched. Candidates are found by the statistics of the
files, then by the columns that have statistics, then by all columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.model.change import BeforeKind, Op
from tidemark.pipeline.lake.layout import LakeColumn
from tidemark.pipeline.merge.compaction import new_and_old_rows
from tidemark.pipeline.merge.key_ranges import SoughtKeys
from tidemark.pipeline.merge.keys import NAN, Indexes, comparable_keys, indexes_of
from tidemark.pipeline.merge.touched_files import Hit, KeyedFiles

_NUMBER = "__tidemark_number"
_BITS = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}


@dataclass(frozen=True, slots=True, eq=False)
class NetRows:
    """The effect of a run on a multiset: for each distinct row, how many it removes and then adds."""

    rows: pa.Table
    lost: Indexes  # rows that existed before the run, if the replica has them
    gained: Indexes  # rows that the run added and did not remove again

    def after_search(self, hits: Mapping[int, Hit]) -> tuple[Indexes, Indexes]:
        """Return how many of each row are removed from files and added, when `hits` were found; equal ones stay."""
        found = np.zeros(self.rows.num_rows, np.int64)
        for hit in hits.values():
            found += np.bincount(hit.sought, minlength=self.rows.num_rows)
        stays = np.minimum(found, self.gained)
        return found - stays, self.gained - stays


def net_rows(changes: pa.Table, columns: Sequence[LakeColumn]) -> NetRows | None:
    """Return the effect of `changes`, rows of one layout in stream order; None if a change lacks its whole old row.

    NB: the order counts. A row that is removed and then added may be one that the replica lacks, because it was never
    copied: the replica then has it afterwards.
    """
    ops = changes.column("_op")
    has_old = np.asarray(pc.is_in(ops, pa.array([Op.UPDATE.value, Op.DELETE.value])).to_numpy(), np.bool_)
    has_new = np.asarray(pc.not_equal(ops, Op.DELETE.value).to_numpy(), np.bool_)
    kinds = changes.column("_before_kind").to_numpy()
    new, old, unknown = new_and_old_rows(changes, columns)
    if unknown or not bool((kinds[has_old] == BeforeKind.FULL.value).all()):
        return None
    at_old, at_new = np.flatnonzero(has_old), np.flatnonzero(has_new)
    entries = pa.concat_tables([old.take(pa.array(at_old)), new.take(pa.array(at_new))])
    # Within a change the old row is removed before the new one is added.
    order = np.argsort(np.concatenate([at_old * 2, at_new * 2 + 1]), kind="stable")
    steps = np.concatenate([np.full(len(at_old), -1), np.full(len(at_new), 1)])[order]
    codes, first = _distinct(entries)
    lost, gained = _net(codes[order], steps, len(first))
    return NetRows(entries.take(pa.array(first)), lost, gained)


def equal_rows(files: KeyedFiles, rows: pa.Table, wanted: Indexes) -> dict[int, Hit]:
    """Return rows of the files that equal `rows`, which are distinct: at most `wanted` for each."""
    sought = np.flatnonzero(wanted)
    identities, left, found = row_identities(rows), wanted.copy(), dict[int, Hit]()
    if not len(sought):
        return found
    ranges = SoughtKeys(comparable_keys(rows.select(files.key).take(pa.array(sought)), files.key))
    for file, inside in files.ranges.inside(ranges).items():
        indexes = sought[inside]
        indexes = indexes[left[indexes] > 0]
        if not len(indexes):
            continue
        hit = _matches(files, file, rows.schema.names, identities.take(pa.array(indexes)))
        hit = _first(Hit(hit.rows, indexes[hit.sought]), left)
        if len(hit.rows):
            left -= np.bincount(hit.sought, minlength=len(left))
            found[file] = hit
    return found


def limited(hits: Mapping[int, Hit], counts: Indexes) -> dict[int, Hit]:
    """Return the first `counts` hits of each row; files without one are left out."""
    left, found = counts.copy(), {}
    for file, hit in hits.items():
        first = _first(hit, left)
        if len(first.rows):
            left -= np.bincount(first.sought, minlength=len(left))
            found[file] = first
    return found


def row_identities(rows: pa.Table) -> pa.Table:
    """Return a table whose rows are equal if those of `rows` are, of types that Arrow can compare."""
    return pa.table([_identity(rows.column(name)) for name in rows.schema.names], names=rows.schema.names)


def _identity(values: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    kind = values.type
    if kind in _BITS:
        one_nan = pc.if_else(pc.is_nan(values), pa.scalar(NAN, kind), values)
        return pa.chunked_array([chunk.view(_BITS[kind]) for chunk in one_nan.chunks], _BITS[kind])
    if pa.types.is_list(kind):
        return pa.array([None if row is None else repr(row) for row in _elements(values)], pa.string())
    return values


def _elements(values: pa.ChunkedArray) -> list[object]:
    """Return lists as Python's; dates and times in them as numbers: Python's have no infinity."""
    inner = values.type.value_type
    if pa.types.is_temporal(inner):
        values = values.cast(pa.list_(pa.int32() if inner.bit_width == 32 else pa.int64()))
    found: list[object] = values.to_pylist()
    return found


def _distinct(rows: pa.Table) -> tuple[Indexes, Indexes]:
    """Return for each row the number of its distinct value, and for each number the first row that has it."""
    identities = row_identities(rows)
    numbered = identities.append_column(_NUMBER, pa.array(np.arange(rows.num_rows)))
    grouped = numbered.group_by(identities.schema.names, use_threads=False).aggregate([(_NUMBER, "min")])
    first = np.asarray(grouped.column(f"{_NUMBER}_min").to_numpy(), np.int64)
    return indexes_of(identities, identities.take(pa.array(first))), first


def _net(codes: Indexes, steps: Indexes, count: int) -> tuple[Indexes, Indexes]:
    """Return for each code how far its sum of steps falls below 0, and how much it rises from there to its end."""
    order = np.argsort(codes, kind="stable")
    sums = np.cumsum(steps[order])
    starts = np.searchsorted(codes[order], np.arange(count))
    before = np.where(starts > 0, sums[starts - 1], 0)
    lowest = np.minimum(np.minimum.reduceat(sums, starts) - before, 0)
    ends = np.append(starts[1:], len(sums)) - 1
    return -lowest, sums[ends] - before - lowest


def _matches(files: KeyedFiles, file: int, names: Sequence[str], wanted: pa.Table) -> Hit:
    """Return the rows of a file that equal a row of `wanted`, which are distinct."""
    data, reader = files.files[file], files.reader
    first = wanted.select(files.key)
    some = first.group_by(files.key, use_threads=False).aggregate([])
    ranged = row_identities(reader.columns(data, files.key))
    at = np.flatnonzero(indexes_of(ranged, some) >= 0)
    if not len(at):
        return Hit(at, at)
    others = [name for name in names if name not in files.key]
    rows = ranged.take(pa.array(at))
    if others:
        more = row_identities(reader.columns(data, others).take(pa.array(at)))
        for name in others:
            rows = rows.append_column(name, more.column(name))
    indexes = indexes_of(rows, wanted.select([*files.key, *others]))
    return Hit(at[indexes >= 0], indexes[indexes >= 0])


def _first(hit: Hit, left: Indexes) -> Hit:
    """Return at most `left` of the hits of each sought row."""
    order = np.argsort(hit.sought, kind="stable")
    sought = hit.sought[order]
    rank = np.arange(len(sought)) - np.searchsorted(sought, sought, "left")
    chosen = np.sort(order[rank < left[sought]])
    return Hit(hit.rows[chosen], hit.sought[chosen])
