"""Merges a compacted run into a replica by *copy-on-write*: files that contain a changed row are written again.

A merge therefore costs what changed, not what the table contains. All files of one merge are added and removed in one
commit. New rows go into files that are written anyway, else into one file that has space for them and whose range of
keys they extend least, else into new files.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction

from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.delta_log.commit_files import FileChange
from tidemark.pipeline.lake.files.file_format import FILE_BYTES
from tidemark.pipeline.lake.files.partitions import UNPARTITIONED, PartitionValues, as_json, divided
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.merge.compaction import Compacted, RowKey, keys_of
from tidemark.pipeline.merge.data_files import FileReader, FileWriter, file_rows, laid_out
from tidemark.pipeline.merge.key_ranges import SoughtKeys
from tidemark.pipeline.merge.keys import Indexes, comparable_keys
from tidemark.pipeline.merge.merge_plans import MergePlan, plan_by_key, plan_by_row
from tidemark.pipeline.merge.touched_files import Hit, KeyedFiles, keyed_files
from tidemark.pipeline.merge.whole_rows import NetRows

_NONE = np.zeros(0, np.int64)
_ROW = "__tidemark_row"
_NOTHING = Hit(_NONE, _NONE)


@dataclass(frozen=True, slots=True)
class ReplicaFormat:
    """How the files of a replica are written: sorted by some columns, in a number that fits to all of its rows."""

    sorted_by: Sequence[str]
    partition: Sequence[str]
    table_rows: int


@dataclass(frozen=True, slots=True)
class MergedFiles:
    """The files that a merge wrote, and the numbers of those that they replace."""

    added: Sequence[AddAction]
    removed: Sequence[int] = ()


def appended_files(reader: FileReader, key: Sequence[str], rows: pa.Table, form: ReplicaFormat) -> MergedFiles:
    """Write rows whose keys the replica does not contain."""
    rows_max = file_rows(form.table_rows + rows.num_rows)
    writer = FileWriter(reader.uri, form.sorted_by, rows_max, sought_by=key, partition=form.partition)
    return MergedFiles(writer.write(laid_out(rows, reader.schema)))


def merged_files(files: KeyedFiles, compacted: Compacted, form: ReplicaFormat) -> MergedFiles:
    """Write the files with the rows to put, and without the removed ones, of `compacted`."""
    return _written(files, plan_by_key(files, compacted, files.reader.schema), form)


def _written(files: KeyedFiles, plan: MergePlan, form: ReplicaFormat) -> MergedFiles:
    merge = _Merge(files, plan, form)
    writer = FileWriter(files.reader.uri, form.sorted_by, merge.rows_max, sought_by=files.key, partition=form.partition)
    added = [action for actions in merge.rewritten(writer) for action in actions]
    return MergedFiles(added, list(merge.hits))


def append_rows(
    table: LakeTable, rows: pa.Table, key: Sequence[str], applied: Applied, sorted_by: Sequence[str] = ()
) -> None:
    """Append rows whose keys the replica does not contain; its files are sorted as by `merge_rows`."""
    with table.writing(applied) as change:
        files = keyed_files(table, key)
        form = _format(table, files, sorted_by or key)
        change.added += appended_files(files.reader, key, rows, form).added


def merge_rows(
    table: LakeTable, compacted: Compacted, key: Sequence[str], applied: Applied, sorted_by: Sequence[str] = ()
) -> int:
    """Put and remove the rows of `compacted`; return the bytes of the files that were written again.

    Files are sorted by other columns than the key if they are given.
    """
    with table.writing(applied) as change:
        files = keyed_files(table, key)
        return _replace(change, files, merged_files(files, compacted, _format(table, files, sorted_by or key)))


def merge_whole_rows(table: LakeTable, net: NetRows, columns: Sequence[str], applied: Applied) -> None:
    """Apply the net changes of a table without a key; `columns` are those by which its files are sorted."""
    with table.writing(applied) as change:
        files = keyed_files(table, columns)
        _replace(change, files, _written(files, plan_by_row(files, net, table.schema), _format(table, files, columns)))


def _format(table: LakeTable, files: KeyedFiles, sorted_by: Sequence[str]) -> ReplicaFormat:
    return ReplicaFormat(sorted_by, table.partition, files.rows)


def _replace(change: FileChange, files: KeyedFiles, merged: MergedFiles) -> int:
    change.added += merged.added
    removed = [files.files[file] for file in merged.removed]
    change.removed += [file.removal(data_change=True) for file in removed]
    return sum(file.size for file in removed)


def rows_of(files: KeyedFiles, wanted: Sequence[RowKey], names: Sequence[str]) -> dict[RowKey, dict[str, object]]:
    """Read the columns `names` of the rows whose keys are `wanted`."""
    schema, key, found = files.reader.schema, files.key, dict[RowKey, dict[str, object]]()
    columns = [*key, *(name for name in names if name not in key)]
    keys = [pa.array([values[i] for values in wanted], schema.field(name).type) for i, name in enumerate(key)]
    sought = SoughtKeys(comparable_keys(pa.table(keys, names=list(key)), key))
    for file, hit in files.touched(sought, files.ranges.inside(sought)).items():
        rows = files.reader.columns(files.files[file], columns).take(pa.array(hit.rows))
        found.update(zip(keys_of(rows, key), rows.select(list(names)).to_pylist(), strict=True))
    return found


class _Merge:
    """One merge: which files are rewritten, and with which new rows, each in its partition."""

    def __init__(self, files: KeyedFiles, plan: MergePlan, form: ReplicaFormat) -> None:
        self.files = files
        self._partition = form.partition
        self._places, self._place_of = _places(plan.puts, form.partition)
        self._moved: list[pa.Table] = []  # rows whose change moves them to another partition
        self._puts = plan.puts
        self._kept = plan.kept
        self._sought = plan.sought
        self.rows_max = file_rows(form.table_rows + plan.puts.num_rows)
        self.hits = plan.hits
        self._new: dict[int, Indexes] = {}
        self._left = self._assign_new_rows(plan.inside)

    def rewritten(self, writer: FileWriter) -> Iterator[list[AddAction]]:
        """Write the touched files again, and the new rows that are in none of them."""
        pool = _Pool(writer, self.rows_max)
        last = -1
        for rank, file in sorted((self.files.ranges.ranks[file], file) for file in self.hits):
            # Small neighbours become one file. NB: not across an untouched file, whose keys it would overlap.
            if rank != last + 1:
                yield pool.written()
            for piece in self._pieces(file):
                if not pool.fits(piece):
                    yield pool.written()
                pool.add(piece)
            last = rank
        yield pool.written()
        if len(self._left) or self._moved:
            yield writer.write(pa.concat_tables([self._put_rows(self._left), *self._moved]))

    def _put_rows(self, indexes: Indexes) -> pa.Table:
        return self._puts.take(pa.array(indexes)) if len(indexes) else self._puts.slice(0, 0)

    def _pieces(self, file: int) -> Iterator[pa.Table]:
        """Yield the rows of a file after the change."""
        hit, end = self.hits[file], 0
        new = self._put_rows(self._new.get(file, _NONE))
        for rows in self.files.reader.pieces(self.files.files[file]):
            begin, end = end, end + rows.num_rows
            here = (hit.rows >= begin) & (hit.rows < end)
            yield pa.concat_tables([self._changed(file, rows, hit.rows[here] - begin, hit.sought[here]), new])
            new = new.slice(0, 0)
        if new.num_rows:  # the file has no rows
            yield new

    def _changed(self, file: int, rows: pa.Table, at: Indexes, sought: Indexes) -> pa.Table:
        """Return `rows` of a file without those `at`, and with the new rows for these keys instead."""
        stays = np.ones(rows.num_rows, np.bool_)
        stays[at] = False
        is_put = sought < self._puts.num_rows
        put, kept_at = self._put_rows(sought[is_put]), pa.array(at[is_put])
        for name, flags in self._kept.items():
            old = rows.select([name]).take(kept_at)
            values = pc.if_else(pa.array(flags[sought[is_put]]), old.column(name), put.column(name))
            index = put.schema.get_field_index(name)
            put = put.set_column(index, put.schema.field(index), values)
        if self._partition and put.num_rows:
            parts = {as_json(values): part for values, part in divided(put, self._partition)}
            put = parts.pop(as_json(self._values(file)), put.slice(0, 0))
            self._moved += parts.values()
        return pa.concat_tables([rows.filter(pa.array(stays)), put])

    def _assign_new_rows(self, inside: Mapping[int, Indexes]) -> Indexes:
        """Assign the rows that the replica lacks to files; return those that need new files."""
        is_new = np.ones(self._puts.num_rows, np.bool_)
        for hit in self.hits.values():
            is_new[hit.sought[hit.sought < len(is_new)]] = False
        for flags in self._kept.values():
            is_new &= ~flags  # a row with a kept value is not new; it must not be inserted incompletely
        for file in self.hits:
            indexes = inside.get(file, _NONE)
            indexes = indexes[indexes < len(is_new)]
            indexes = indexes[self._place_of[indexes] == self._place(file)]
            self._new[file] = indexes[is_new[indexes]]
            is_new[self._new[file]] = False
        unassigned = [self._assign_left(inside, left) for left in self._by_place(np.flatnonzero(is_new))]
        return np.concatenate([_NONE, *unassigned])

    def _by_place(self, indexes: Indexes) -> Iterator[Indexes]:
        """Divide rows to put by their partition."""
        places = self._place_of[indexes]
        yield from (indexes[places == place] for place in np.unique(places))

    def _assign_left(self, inside: Mapping[int, Indexes], left: Indexes) -> Indexes:
        """Assign new rows of one partition to a file of it; return those that need new files."""
        target = self._file_for_new_rows(inside, left)
        if target is None:
            return left
        self.hits.setdefault(target, _NOTHING)
        self._new[target] = np.concatenate([self._new.get(target, _NONE), left])
        return _NONE

    def _place(self, file: int) -> int:
        """Return the number of a file's partition among those of the rows to put; -1: it is none of them."""
        return self._places.get(as_json(self._values(file)), -1)

    def _values(self, file: int) -> PartitionValues:
        return self.files.files[file].partition

    def _file_for_new_rows(self, inside: Mapping[int, Indexes], left: Indexes) -> int | None:
        """Return a file to which `left` is added, so that small batches do not leave a file each.

        If no file's range contains or separates the keys, as at the end of the table, it is the file before them; else
        the nearest small file. Its range then overlaps others, until maintenance sorts them.
        """
        files, ranges = self.files.files, self.files.ranges
        rank, last = ranges.ranks_before(self._sought, left)
        place = int(self._place_of[left[0]])
        among = np.zeros(self._sought.keys.num_rows, np.bool_)
        among[left] = True
        if 0 <= rank == last and not any(among[indexes].any() for indexes in inside.values()):
            before = int(ranges.order[rank])
            if self._place(before) == place:
                return before if files[before].rows + len(left) <= self.rows_max else None
        rows_max = self.rows_max // 2 - len(left)
        small = [file for file, one in enumerate(files) if one.rows <= rows_max and self._place(file) == place]
        return min(small, key=lambda file: abs(ranges.ranks[file] - rank), default=None)


def _places(rows: pa.Table, partition: Sequence[str]) -> tuple[dict[str, int], Indexes]:
    """Return the numbers of the partitions of `rows` by their values as text, and that of each row."""
    if not partition:
        return {as_json(UNPARTITIONED): 0}, np.zeros(rows.num_rows, np.int64)
    numbered = rows.select(list(partition)).append_column(_ROW, pa.array(np.arange(rows.num_rows)))
    places, place_of = dict[str, int](), np.zeros(rows.num_rows, np.int64)
    for number, (values, part) in enumerate(divided(numbered, partition)):
        places[as_json(values)] = number
        place_of[part.column(_ROW).to_numpy()] = number
    return places, place_of


class _Pool:
    """Rows that are written together: as many as fit into a file, or one piece."""

    def __init__(self, writer: FileWriter, rows_max: int) -> None:
        self._writer = writer
        self._rows_max = rows_max
        self._pieces: list[pa.Table] = []

    def fits(self, piece: pa.Table) -> bool:
        pieces = [*self._pieces, piece]
        rows = sum(one.num_rows for one in pieces)
        return not self._pieces or (rows <= self._rows_max and sum(one.nbytes for one in pieces) <= FILE_BYTES)

    def add(self, piece: pa.Table) -> None:
        self._pieces.append(piece)

    def written(self) -> list[AddAction]:
        """Write the rows; return the actions that add their files."""
        pieces, self._pieces = self._pieces, []
        return self._writer.write(pa.concat_tables(pieces)) if pieces else []
