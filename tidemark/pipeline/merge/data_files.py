"""The data files of a replica: Parquet files that are read and written here, and are added to the table by a commit."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from itertools import pairwise
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction, RemoveAction

from tidemark.pipeline.lake.files.file_format import FILE_BYTES, ArrowEncodings, arrow_encodings
from tidemark.pipeline.lake.files.file_writing import as_type, removal, write_file
from tidemark.pipeline.lake.files.partitions import PartitionValues, divided, parsed
from tidemark.pipeline.merge.kept_keys import KEPT, file_key
from tidemark.pipeline.merge.keys import comparable, comparable_keys
from tidemark.pipeline.storage.stores import store_of
from tidemark.pipeline.storage.turns import waiting

FILE_ROWS_MIN, FILE_ROWS_MAX = 8192, 65536  # fewer cost an opening for few rows, more are rewritten for one change
FILES_WANTED = 2000  # of a table: opening it costs 6 microseconds for each
NO_CONSTANTS: Mapping[str, pa.Array] = {}
PIECE_BYTES = 128 << 20  # of a file, uncompressed, that are read and sorted together


def file_rows(total: int) -> int:
    """Return the maximum number of rows in a file of a table with `total` rows."""
    wanted = -(-total // FILES_WANTED)
    return min(max(FILE_ROWS_MIN, 1 << max(0, wanted - 1).bit_length()), FILE_ROWS_MAX)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of a snapshot."""

    path: str  # as in the log: relative to the table, percent-encoded
    size: int
    rows: int  # 0 if the log does not contain the number
    partition: PartitionValues = dataclass_field(default_factory=dict)

    def removal(self, *, data_change: bool) -> RemoveAction:
        """Return the action that removes the file from the table."""
        return removal(self.path, self.size, data_change=data_change, partition=self.partition)


class FileReader:
    """Reads files of one table, in the layout of its snapshot: a file without a column was written before it."""

    def __init__(self, uri: str, schema: pa.Schema) -> None:
        self.uri, self._store = uri, store_of(uri)
        self.schema = schema

    def columns(self, file: DataFile, names: Sequence[str]) -> pa.Table:
        """Read some columns of all rows."""
        with waiting(), self._open(file) as opened:  # it ignores names of columns that it does not have
            rows = opened.read(names, use_threads=False)
        return self._laid_out(rows, names, file)

    def pieces(self, file: DataFile) -> Iterator[pa.Table]:
        """Read all columns; a large file in pieces of about `PIECE_BYTES`."""
        names = self.schema.names
        with self._open(file) as opened:
            groups, group_bytes = [], 0
            for number in range(opened.num_row_groups):
                groups.append(number)
                group_bytes += opened.metadata.row_group(number).total_byte_size
                if group_bytes >= PIECE_BYTES:
                    with waiting():
                        rows = opened.read_row_groups(groups, names, use_threads=False)
                    yield self._laid_out(rows, names, file)
                    groups, group_bytes = [], 0
            if groups:
                with waiting():
                    rows = opened.read_row_groups(groups, names, use_threads=False)
                yield self._laid_out(rows, names, file)

    def _open(self, file: DataFile) -> pq.ParquetFile:
        return pq.ParquetFile(self._store.parquet_source(f"{self.uri}/{unquote(file.path)}"))

    def _laid_out(self, rows: pa.Table, names: Sequence[str], file: DataFile) -> pa.Table:
        wanted = pa.schema([self.schema.field(name) for name in names])
        constants = {
            name: pa.repeat(parsed(value, wanted.field(name).type), rows.num_rows)
            for name, value in file.partition.items()
            if name in names
        }
        return laid_out(rows, wanted, constants)


class FileWriter:
    """Writes files of one table, each of one partition, sorted by key and bounded in rows and bytes."""

    def __init__(
        self,
        uri: str,
        key: Sequence[str],
        rows_max: int,
        *,
        sought_by: Sequence[str] = (),
        partition: Sequence[str] = (),
        data_change: bool = True,
    ) -> None:
        """Sort by `key`; merges find rows by the columns `sought_by`, by default the same.

        `partition`: the partition columns.
        """
        self._uri = uri
        self._partition = partition
        self._key = key
        self._sought_by = sought_by or key
        self._rows_max = rows_max
        self._data_change = data_change
        self._encodings: ArrowEncodings | None = None

    def write(self, rows: pa.Table) -> list[AddAction]:
        """Write `rows` in as few files as the bounds permit; return the actions that add them."""
        return [
            action for values, part in divided(rows, self._partition) for action in self._write_partition(values, part)
        ]

    def _write_partition(self, values: PartitionValues, rows: pa.Table) -> list[AddAction]:
        rows = ordered(rows, self._key)
        count = self._count(rows)
        if count == 1:
            return [self._write(values, rows)]
        ends = np.linspace(0, rows.num_rows, count + 1).astype(np.int64).tolist()
        return [self._write(values, rows.slice(begin, end - begin)) for begin, end in pairwise(ends)]

    def count(self, rows: pa.Table) -> int:
        """Return the number of files that the bounds require for `rows`."""
        return sum(self._count(part) for _, part in divided(rows, self._partition))

    def _count(self, rows: pa.Table) -> int:
        fitting: int = max(1, min(self._rows_max, rows.num_rows * FILE_BYTES // max(1, rows.nbytes)))
        return int(-(-rows.num_rows // fitting))

    def _write(self, values: PartitionValues, rows: pa.Table) -> AddAction:
        if self._encodings is None:
            self._encodings = arrow_encodings(rows.drop_columns(list(self._partition)))
        action = write_file(
            self._uri, rows, self._encodings, self._key, data_change=self._data_change, partition=values
        )
        fields = [rows.schema.field(name) for name in self._sought_by]
        KEPT.put(file_key(self._uri, action.path, fields), comparable_keys(rows, self._sought_by))
        return action


def ordered(rows: pa.Table, key: Collection[str]) -> pa.Table:
    """Return `rows` in the order of the key; lists have no order."""
    names = [name for name in key if not pa.types.is_nested(rows.schema.field(name).type)]
    if not names:
        return rows
    keys = pa.table([comparable(rows.column(name)) for name in names], names=names)
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in names])
    is_sorted = bool(np.array_equal(order.to_numpy(), np.arange(rows.num_rows)))
    return rows if is_sorted else rows.take(order)


def laid_out(rows: pa.Table, schema: pa.Schema, constants: Mapping[str, pa.Array] = NO_CONSTANTS) -> pa.Table:
    """Return `rows` with the columns of `schema`; those that `rows` lacks are in `constants`, or NULL."""
    names = set(rows.schema.names)
    columns = [
        as_type(rows.column(field.name), field.type)
        if field.name in names
        else constants.get(field.name, pa.nulls(rows.num_rows, field.type))
        for field in schema
    ]
    return pa.table(columns, schema=schema)
