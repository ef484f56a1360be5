"""The touched files of a change: those that contain one of its keys. Only they are rewritten.

Candidates are found by the ranges of keys in the Delta log; of these the key columns are read, if they are not kept. A
key is in one file at most, so a file is not read for keys that were found already.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import pyarrow as pa

from tidemark.pipeline.lake.files.partitions import from_json
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.merge.data_files import DataFile, FileReader
from tidemark.pipeline.merge.kept_keys import KEPT, FileKey, file_key
from tidemark.pipeline.merge.key_ranges import KeyRanges, SoughtKeys
from tidemark.pipeline.merge.keys import Indexes, comparable_keys, indexes_of

_COLUMNS = ("path", "size_bytes", "num_records", "partition")
READ_ROWS_MIN = 1 << 16  # rows whose keys are compared together, and twice the sought keys
READ_ROWS_MAX = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Hit:
    """The rows of one file that have sought keys, and the indexes of these keys."""

    rows: Indexes
    sought: Indexes


class KeyedFiles:
    """The files of one snapshot of a replica, with their ranges of keys."""

    def __init__(self, reader: FileReader, added: pa.Table, key: Sequence[pa.Field]) -> None:
        """Describe the files `added`, as `LakeTable.files` returns them."""
        self.key = [field.name for field in key]
        self.reader = reader
        self.files = [
            DataFile(path, size, rows or 0, from_json(partition))
            for path, size, rows, partition in zip(*(added.column(name).to_pylist() for name in _COLUMNS), strict=True)
        ]
        self.added, self._key = added, key

    @cached_property
    def ranges(self) -> KeyRanges:
        """The ranges of keys: an append does not need them."""
        return KeyRanges(self.added, self._key, self.files[0].partition if self.files else ())

    @property
    def rows(self) -> int:
        """Return the number of rows in the table."""
        return sum(file.rows for file in self.files)

    def touched(self, sought: SoughtKeys, inside: Mapping[int, Indexes]) -> dict[int, Hit]:
        """Return the files that contain sought keys; `inside` are the candidates (`KeyRanges.inside`)."""
        missing = np.ones(sought.keys.num_rows, np.bool_)
        found = {}
        for files in self._chunks(inside, sought):
            wanted = {file: inside[file][missing[inside[file]]] for file in files}
            read = [file for file in files if len(wanted[file])]
            for file, hit in self._compare(read, wanted, sought):
                missing[hit.sought] = False
                found[file] = hit
        return found

    def _compare(
        self, files: Sequence[int], wanted: Mapping[int, Indexes], sought: SoughtKeys
    ) -> Iterator[tuple[int, Hit]]:
        if not files:
            return
        tables = [KEPT.get(self._name(file), partial(self._read_keys, file)) for file in files]
        among = np.unique(np.concatenate([wanted[file] for file in files]))
        indexes = indexes_of(pa.concat_tables(tables), sought.keys.take(pa.array(among)))
        end = 0
        for file, table in zip(files, tables, strict=True):
            begin, end = end, end + table.num_rows
            rows = np.flatnonzero(indexes[begin:end] >= 0)
            if len(rows):
                yield file, Hit(rows, among[indexes[begin:end][rows]])

    def _read_keys(self, file: int) -> pa.Table:
        return comparable_keys(self.reader.columns(self.files[file], self.key), self.key).combine_chunks()

    def _name(self, file: int) -> FileKey:
        return file_key(self.reader.uri, self.files[file].path, self._key)

    def _chunks(self, inside: Mapping[int, Indexes], sought: SoughtKeys) -> Iterator[list[int]]:
        """Group files whose keys are compared together: a comparison costs something for each sought key, too."""
        rows_min = min(max(READ_ROWS_MIN, 2 * sought.keys.num_rows), READ_ROWS_MAX)
        chunk: list[int] = []
        rows = 0
        for file in inside:
            chunk.append(file)
            rows += self.files[file].rows
            if rows >= rows_min:
                yield chunk
                chunk, rows = [], 0
        if chunk:
            yield chunk


def keyed_files(table: LakeTable, key: Sequence[str]) -> KeyedFiles:
    """Return the files of the snapshot `table`, and the ranges of keys in them."""
    table.remove_deletion_vectors()
    schema = table.schema
    return KeyedFiles(FileReader(table.uri, schema), table.files(key), [schema.field(name) for name in key])
