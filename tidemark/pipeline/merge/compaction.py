"""Compaction: reduces the changes of a run to one row to put or one key to remove, for each key of a replica.

delta-rs refuses two source rows for one key, and a replica needs only the last state. An update that changes the key is
the removal of the old key and a new row. If a TOASTed value did not change, WAL does not contain it: its value is the
newest one of the same row, earlier in the run or in the replica, where the row possibly has its earlier key. A row that
the replica lacks, because it was never copied, is left out until a change contains the whole row.

In a replica that keeps deleted rows, a removed key is a row to put as well: with its last values, and with marks.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.model.change import AFTER, BEFORE, BeforeKind, Op
from tidemark.model.errors import InternalError
from tidemark.pipeline.lake.deletion_marks import marked
from tidemark.pipeline.lake.layout import LakeColumn, RowMask, position_of, unchanged_masks
from tidemark.pipeline.merge.keys import NAN, Indexes, comparable, comparable_keys

RowKey = tuple[object, ...]
LISTED_MAX = 64  # keys: to group them costs as much as to list that many
_ORDER, _PUT = "__tidemark_order", "__tidemark_put"
_NEW_ROWS = pa.array([Op.INSERT.value, Op.COPY.value])


@dataclass(frozen=True, slots=True, eq=False)
class Compacted:
    """The result for a run. `kept[name]` marks the rows of `puts` whose column `name` keeps the replica's value."""

    puts: pa.Table
    removed: pa.Table  # keys only
    kept: dict[str, pa.Array]
    only_new: bool  # every put inserts a key that cannot be in the replica


@dataclass(frozen=True, slots=True, eq=False)
class ChangedKeys:
    """The keys of some changes: first those of the new rows, then those that deletes and moves remove."""

    keys: pa.Table  # comparable
    rows: Indexes  # of each key: the number of its change
    row_count: int
    only_adds: bool
    moves: bool  # a change has another key than its row had before
    has_unchanged: bool  # values that the changes do not contain


Fetch = Callable[[Sequence[RowKey], Sequence[str]], dict[RowKey, dict[str, object]]]
"""Reads columns of some of the replica's rows, by key."""


def compact(
    changes: pa.Table, columns: Sequence[LakeColumn], key: Sequence[str], fetch: Fetch, *, keeps_deleted: bool = False
) -> Compacted:
    """Compact `changes`, rows of one layout in stream order, for a replica whose key is `key`.

    With `keeps_deleted`, a key that the source adds may be in the replica, and the rows to put have marks.
    """
    if only_adds(changes) and not keeps_deleted:
        puts = _flat(changes, AFTER, columns)
        if are_distinct(comparable_keys(puts, key)):
            return Compacted(puts, puts.select(list(key)).slice(0, 0), {}, only_new=True)
    run = _ChangeRun(changes, columns, key, keeps_deleted=keeps_deleted)
    return _compact_by_row(run, fetch) if run.unchanged else _compact_by_column(run)


def only_adds(changes: pa.Table) -> bool:
    """Return whether every change adds a new row; the server has already enforced the key's uniqueness."""
    return bool(pc.all(pc.is_in(changes.column("_op"), _NEW_ROWS)).as_py())


def are_distinct(keys: pa.Table) -> bool:
    """Return whether all keys differ. Ascending integers, as from a sequence, are detected without hashing."""
    if keys.num_rows <= LISTED_MAX:
        return bool(len(set(keys_of(keys, keys.schema.names))) == keys.num_rows)
    first = keys.column(0)
    if pa.types.is_integer(first.type):
        values = first.to_numpy()
        if bool((values[1:] > values[:-1]).all()):
            return True
    return bool(keys.group_by(keys.schema.names, use_threads=False).aggregate([]).num_rows == keys.num_rows)


class _ChangeRun:
    """The input of compaction: new rows, keys before and after, and the effect of each change on them."""

    def __init__(
        self, changes: pa.Table, columns: Sequence[LakeColumn], key: Sequence[str], *, keeps_deleted: bool
    ) -> None:
        self.changes = changes
        self.key = list(key)
        self.keeps_deleted = keeps_deleted
        self.ops = changes.column("_op").to_numpy()
        self.deletes = self.ops == "d"
        self.new, self.old, self.unchanged = new_and_old_rows(changes, columns)
        known = changes.column("_before_kind").to_numpy() != BeforeKind.NONE.value
        nameless = self.deletes & ~known
        if nameless.any():
            raise InternalError(f"a delete does not identify its row: {position_of(changes, int(nameless.argmax()))}")
        named = known & ~self.deletes
        self.moves = named & self._key_differs() if named.any() else named

    def _key_differs(self) -> RowMask:
        differs = np.zeros(self.changes.num_rows, np.bool_)
        for name in self.key:
            old, new = self.old.column(name), self.new.column(name)
            equal = _mask(pc.fill_null(pc.equal(old, new), fill_value=False))
            differs |= ~(equal | _mask(pc.and_(old.is_null(), new.is_null())))
        return differs


def changed_keys(changes: pa.Table, columns: Sequence[LakeColumn], key: Sequence[str]) -> ChangedKeys:
    """Return the keys of `changes`, rows of one layout in stream order, which belong to a replica with `key`."""
    if only_adds(changes):
        count, keys = changes.num_rows, comparable_keys(_flat(changes, AFTER, columns), key)
        return ChangedKeys(keys, np.arange(count), count, only_adds=True, moves=False, has_unchanged=False)
    run = _ChangeRun(changes, columns, key, keeps_deleted=False)
    put_at, remove_at = np.flatnonzero(~run.deletes), np.flatnonzero(run.deletes | run.moves)
    new, old = run.new.take(pa.array(put_at)), run.old.take(pa.array(remove_at))
    keys = pa.concat_tables([comparable_keys(new, run.key), comparable_keys(old, run.key)])
    return ChangedKeys(
        keys,
        np.concatenate([put_at, remove_at]),
        changes.num_rows,
        only_adds=False,
        moves=bool(run.moves.any()),
        has_unchanged=bool(run.unchanged),
    )


def _compact_by_column(run: _ChangeRun) -> Compacted:
    """Compact a run without unchanged values by one group-by: only the last change of a key counts."""
    put_at, remove_at = np.flatnonzero(~run.deletes), np.flatnonzero(run.deletes | run.moves)
    is_small = run.changes.num_rows <= LISTED_MAX and not run.keeps_deleted
    if is_small and not len(remove_at) and are_distinct(run.new.select(run.key)):
        return Compacted(run.new, run.new.select(run.key).slice(0, 0), {}, only_new=False)
    new, old = comparable_keys(run.new, run.key), comparable_keys(run.old, run.key)
    # Within a change the old key is removed before the new one is put: even numbers remove, odd numbers put.
    removes, puts = pa.array(remove_at * 2), pa.array(put_at * 2 + 1)
    unput = pa.nulls(len(removes), puts.type)
    entries = pa.concat_tables(
        [
            old.take(pa.array(remove_at)).append_column(_ORDER, removes).append_column(_PUT, unput),
            new.take(pa.array(put_at)).append_column(_ORDER, puts).append_column(_PUT, puts),
        ]
    )
    wanted = [(_ORDER, "max"), (_PUT, "max")] if run.keeps_deleted else [(_ORDER, "max")]
    newest = entries.group_by(run.key, use_threads=False).aggregate(wanted).sort_by(f"{_ORDER}_max")
    last = newest.column(f"{_ORDER}_max").to_numpy()
    is_put = last % 2 == 1
    if run.keeps_deleted:
        put = pc.fill_null(newest.column(f"{_PUT}_max"), -1).to_numpy()
        return _with_deleted(run, last // 2, put // 2, is_put)
    removed = run.old.select(run.key).take(pa.array(last[~is_put] // 2))
    return Compacted(run.new.take(pa.array(last[is_put] // 2)), removed, {}, only_new=False)


def _with_deleted(run: _ChangeRun, last: Indexes, put: Indexes, is_put: RowMask) -> Compacted:
    """Return the rows of all keys, by their last change and the last one that put the row, -1 if the run has none."""
    in_run, count = put >= 0, run.changes.num_rows
    columns = []
    for column in run.new.schema:
        values, at = run.new.column(column.name), pa.array(put, mask=~in_run)
        if column.name in run.key:
            values, at = _chained(values, run.old.column(column.name)), pa.array(np.where(in_run, put, count + last))
        columns.append(values.take(at))
    others = [name for name in run.new.schema.names if name not in run.key]
    kept = {} if in_run.all() else dict.fromkeys(others, pa.array(~in_run))
    puts = marked(pa.table(columns, names=run.new.schema.names), run.changes, pa.array(last, mask=is_put))
    return Compacted(puts, run.new.select(run.key).slice(0, 0), kept, only_new=False)


def _chained(first: pa.ChunkedArray, second: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([*first.chunks, *second.chunks], first.type)


@dataclass(frozen=True, slots=True)
class _NewestState:
    """The newest state of a row: the change that wrote it, and the sources of its unchanged values.

    A source is the number of an earlier change of the run, or the key under which the replica has the row.
    """

    change: int
    sources: dict[str, int | RowKey]
    deleted_by: int | None = None  # the change that deleted the row, in a replica that keeps it
    is_old: bool = False  # the key is that before the change


def _compact_by_row(run: _ChangeRun, fetch: Fetch) -> Compacted:
    new_keys, old_keys = keys_of(run.new, run.key), keys_of(run.old, run.key)
    rows: dict[RowKey, _NewestState | None] = {}

    def deleted(key: RowKey, at: int) -> _NewestState | None:
        """Return the state of a row after its deletion."""
        if not run.keeps_deleted:
            return None
        earlier = rows.get(key)
        if earlier is not None:
            return replace(earlier, deleted_by=at)
        others = (name for name in run.new.schema.names if name not in run.key)
        return _NewestState(at, dict.fromkeys(others, key), at, is_old=True)

    for at, key in enumerate(new_keys):
        if run.deletes[at]:
            rows[old_keys[at]] = deleted(old_keys[at], at)
            continue
        origin = old_keys[at] if run.moves[at] else key
        kept = [name for name, mask in run.unchanged.items() if mask[at]]
        sources = _sources(run, at, rows.get(origin, origin), kept) if kept else {}
        if run.moves[at]:
            rows[origin] = deleted(origin, at)
        rows[key] = _NewestState(at, sources)
    gone = [key for key, row in rows.items() if row is None]
    removed = pa.table(
        [pa.array([key[i] for key in gone], run.new.schema.field(name).type) for i, name in enumerate(run.key)],
        names=run.key,
    )
    puts, kept_columns = _puts(run, [(key, row) for key, row in rows.items() if row is not None], fetch)
    return Compacted(puts, removed, kept_columns, only_new=False)


def _sources(
    run: _ChangeRun, at: int, earlier: _NewestState | RowKey | None, kept: Sequence[str]
) -> dict[str, int | RowKey]:
    if earlier is None or (isinstance(earlier, _NewestState) and earlier.deleted_by is not None):
        raise InternalError(f"an update refers to a value of a row that does not exist: {position_of(run.changes, at)}")
    if isinstance(earlier, _NewestState):
        return {name: earlier.sources.get(name, earlier.change) for name in kept}
    return dict.fromkeys(kept, earlier)


def _puts(
    run: _ChangeRun, rows: Sequence[tuple[RowKey, _NewestState]], fetch: Fetch
) -> tuple[pa.Table, dict[str, pa.Array]]:
    """Build the rows to put, each column from the sources of its values."""
    # By column: the keys under which the replica has the values of rows whose key changed.
    away: dict[str, dict[RowKey, int]] = {}
    for key, row in rows:
        for name, source in _moved(key, row):
            indexes = away.setdefault(name, {})
            indexes.setdefault(source, run.new.num_rows + len(indexes))
    found = fetch(list({key: None for indexes in away.values() for key in indexes}), list(away)) if away else {}
    rows = [(key, row) for key, row in rows if all(source in found for _, source in _moved(key, row))]
    kept: dict[str, pa.Array] = {}
    columns = []
    for column in run.new.schema:
        name, indexes = column.name, away.get(column.name, {})
        values = run.new.column(name)
        if indexes:
            fetched = pa.array([found[key][name] if key in found else None for key in indexes], column.type)
            values = pa.chunked_array([*values.chunks, fetched], column.type)
        sources = [(key, row.sources.get(name, row.change), row.change) for key, row in rows]
        # A value that the replica keeps in place is not written, so any value may be here.
        at = [indexes.get(source, change) if isinstance(source, tuple) else source for _, source, change in sources]
        if name in run.key:
            base, values = len(values), _chained(values, run.old.column(name))
            at = [base + row.change if row.is_old else own for (_, row), own in zip(rows, at, strict=True)]
        columns.append(values.take(pa.array(at, pa.int64())))
        stays = [source == key for key, source, _ in sources]
        if any(stays):
            kept[name] = pa.array(stays)
    puts = pa.table(columns, names=run.new.schema.names)
    if run.keeps_deleted:
        puts = marked(puts, run.changes, pa.array([row.deleted_by for _, row in rows], pa.int64()))
    return puts, kept


def _moved(key: RowKey, row: _NewestState) -> Iterator[tuple[str, RowKey]]:
    """Yield the columns whose value the replica has under a key other than `key`, and that key."""
    for name, source in row.sources.items():
        if isinstance(source, tuple) and source != key:
            yield name, source


def new_and_old_rows(changes: pa.Table, columns: Sequence[LakeColumn]) -> tuple[pa.Table, pa.Table, dict[str, RowMask]]:
    """Return new and old rows, and by column in which new rows the value is unchanged and unknown.

    The server writes the whole old row for FULL, and the whole old key if a part of it is TOASTed. An unchanged value
    is never NULL.
    """
    new, old, left = _flat(changes, AFTER, columns), _flat(changes, BEFORE, columns), {}
    for name, mask in unchanged_masks(changes, columns).items():
        known = mask & _mask(old.column(name).is_valid())
        if known.any():
            filled = pc.if_else(pa.array(known), old.column(name), new.column(name))
            new = new.set_column(new.schema.get_field_index(name), name, filled)
        if (mask & ~known).any():
            left[name] = mask & ~known
    return new, old, left


def _flat(changes: pa.Table, struct: str, columns: Sequence[LakeColumn]) -> pa.Table:
    """Return the struct's children as columns; NULL where the struct is NULL."""
    children = changes.column(struct).combine_chunks().flatten()
    return pa.table([children[column.index] for column in columns], names=[column.name for column in columns])


def keys_of(table: pa.Table, key: Sequence[str]) -> list[RowKey]:
    """Return the keys of rows; two are equal if they are equal in PostgreSQL."""
    columns = [_listed(comparable(table.column(name))) for name in key]
    return list(zip(*(map(_as_key, values) for values in columns), strict=True))


def _listed(values: pa.Array | pa.ChunkedArray) -> list[object]:
    """Return values as Python's, but dates and times as numbers: Python's have neither infinity nor years before 1."""
    if pa.types.is_temporal(values.type):
        values = values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())
    found: list[object] = values.to_pylist()
    return found


def _as_key(value: object) -> object:
    return NAN if isinstance(value, float) and math.isnan(value) else value


def _mask(values: pa.ChunkedArray) -> RowMask:
    return np.asarray(values.to_numpy(), np.bool_)
