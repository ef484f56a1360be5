"""The data files of `_positions`: which rows a batch writes again, and which stay.

One file has the row of the whole lake and those of the tables that batches may change; each batch replaces it. The rows
of dropped tables do not change any longer. They move into separate files, of at most `ROWS_MAX` rows, once there
are `SETTLED_AT_ONCE` of them, so that a batch costs the same however many tables were dropped.

Not done here: the rows themselves (`positions`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa
from deltalake.exceptions import DeltaProtocolError
from deltalake.transaction import AddAction

from tidemark.model.lsn import Oid
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.lake.files.file_format import arrow_encodings
from tidemark.pipeline.lake.files.file_writing import removal, write_file
from tidemark.pipeline.lake.tables.lake_table import LakeTable

SETTLED_AT_ONCE = 64  # rows of dropped tables that a batch may write again, of some 100 bytes each
ROWS_MAX = 1024  # of a file that stays: 100 kB, which are written again for each `SETTLED_AT_ONCE` until it is full

RowsOf = Callable[[Iterable[tuple[Oid, Oid]]], pa.Table]
"""Returns the rows of some tables."""


@dataclass(frozen=True, slots=True, eq=False)
class _SettledFile:
    """A file with rows of dropped tables alone."""

    path: str
    size: int
    tables: frozenset[tuple[Oid, Oid]]


@dataclass(slots=True, eq=False)
class PositionFiles:
    """The files at one version of `_positions`."""

    version: int
    replaced: list[tuple[str, int]]  # path and size of those that the next batch replaces
    settled: list[_SettledFile] = field(default_factory=list)
    _located: dict[tuple[Oid, Oid], _SettledFile] = field(default_factory=dict)

    def settle(self, path: str, size: int, tables: Collection[tuple[Oid, Oid]]) -> None:
        """Take over a file with rows of dropped tables alone."""
        file = _SettledFile(path, size, frozenset(tables))
        self.settled.append(file)
        self._located.update(dict.fromkeys(file.tables, file))

    def write(
        self,
        table: LakeTable,
        rows: pa.Table,
        rows_of: RowsOf,
        applied: Applied,
        *,
        added: Collection[tuple[Oid, Oid]],
        left: Collection[tuple[Oid, Oid]],
    ) -> "PositionFiles":
        """Replace the rows that are not settled by `rows`, in one commit, and return the files after it.

        The tables `added` become settled: `rows_of` returns their rows. Those that have `left` no longer are.
        """
        opened = {id(file): file for of in left if (file := self._located.get(of)) is not None}
        if added and self.settled and len(self.settled[-1].tables) < ROWS_MAX:
            opened[id(self.settled[-1])] = self.settled[-1]
        stays = [file for file in self.settled if id(file) not in opened]
        moved = {of for file in opened.values() for of in file.tables}.difference(left).union(added)
        with table.replacing(applied) as change:
            change.removed += [removal(path, size, data_change=True) for path, size in self.replaced]
            change.removed += [removal(file.path, file.size, data_change=True) for file in opened.values()]
            change.added.append(write_file(table.uri, rows, arrow_encodings(rows)))
            parts = list(_parts(sorted(moved)))
            for part in parts:
                some = rows_of(part)
                change.added.append(write_file(table.uri, some, arrow_encodings(some)))
        if not parts and not opened:
            return PositionFiles(table.version, _named(change.added[:1]), self.settled, self._located)
        after = PositionFiles(table.version, _named(change.added[:1]))
        for file in stays:
            after.settle(file.path, file.size, file.tables)
        for (path, size), part in zip(_named(change.added[1:]), parts, strict=True):
            after.settle(path, size, part)
        return after


def found_files(table: LakeTable, settled: Collection[tuple[Oid, Oid]]) -> PositionFiles | None:
    """Return the files of `_positions`, those with `settled` tables alone apart; None: that is not possible."""
    try:
        parts = list(table.delta.to_pyarrow_dataset().get_fragments())
    except DeltaProtocolError:
        return None
    rows = {part.path: part.to_table(columns=["database", "relation"]) for part in parts}
    found = PositionFiles(table.version, [])
    for path, size in paths_and_sizes(table):
        tables = {(Oid(row["database"]), Oid(row["relation"])) for row in rows[path].to_pylist()}
        if tables and tables.issubset(settled):
            found.settle(path, size, tables)
        else:
            found.replaced.append((path, size))
    return found


def paths_and_sizes(table: LakeTable) -> list[tuple[str, int]]:
    """Return the files of the snapshot, as the log names them."""
    files = table.files(table.schema.names[:1])
    return list(zip(*(files.column(name).to_pylist() for name in ("path", "size_bytes")), strict=True))


def _named(added: Iterable[AddAction]) -> list[tuple[str, int]]:
    return [(action.path, action.size) for action in added]


def _parts(tables: Iterable[tuple[Oid, Oid]]) -> Iterator[list[tuple[Oid, Oid]]]:
    """Yield the tables of each new file."""
    given = iter(tables)
    while part := list(islice(given, ROWS_MAX)):
        yield part
