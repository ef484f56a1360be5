"""The port to processes that write the data files of a run, of which this one makes the commit.

They read the values of the outbox themselves, so no row of the run comes through this process. A file without a commit
is not part of a table: files of a task that failed or was repeated are orphans, which the vacuum removes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
from deltalake.transaction import AddAction

from tidemark.pipeline.lake.files.file_format import arrow_encodings
from tidemark.pipeline.lake.files.file_writing import fitted, write_file
from tidemark.pipeline.merge.compaction import only_adds
from tidemark.pipeline.merge.data_files import FileWriter
from tidemark.pipeline.merge.keys import comparable_keys
from tidemark.pipeline.sinks.logshape import log_rows, spelled
from tidemark.pipeline.sinks.replica_rows import new_rows
from tidemark.pipeline.sinks.steps import PackedRun, Rows
from tidemark.pipeline.sinks.write_costs import RunWriter


@dataclass(frozen=True, slots=True, eq=False)
class WrittenFiles:
    """The files of a run or of a part of it, and for a replica the keys of all rows, in any order."""

    added: Sequence[AddAction]
    keys: pa.Table = field(default_factory=lambda: pa.table({}))


@dataclass(frozen=True, slots=True, eq=False)
class LogFiles:
    """A log to which a run is appended."""

    uri: str
    schema: pa.Schema

    def write(self, rows: Rows) -> WrittenFiles | None:
        """Write a part of the run; None if the log has no place for a column of it."""
        laid_out = fitted(spelled(log_rows(rows), self.schema), self.schema)
        if laid_out is None:
            return None
        return WrittenFiles([write_file(self.uri, laid_out, arrow_encodings(laid_out))])


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaFiles:
    """A replica to which the new rows of a run are appended, in files sorted by some columns."""

    uri: str
    schema: pa.Schema
    key: tuple[str, ...]
    sorted_by: tuple[str, ...]
    rows_max: int

    def write(self, rows: Rows) -> WrittenFiles | None:
        """Write a part of the run; None if it changes more than it adds, or the replica has another layout."""
        if not only_adds(rows.changes):
            return None
        added = new_rows(rows)
        if [(field.name, field.type) for field in added.schema] != [(field.name, field.type) for field in self.schema]:
            return None
        writer = FileWriter(self.uri, self.sorted_by, self.rows_max, sought_by=self.key)
        return WrittenFiles(writer.write(added.cast(self.schema)), comparable_keys(added, self.key))


TargetFiles = LogFiles | ReplicaFiles


def joined(parts: Sequence[WrittenFiles | None]) -> WrittenFiles | None:
    """Return the files of all parts of a run; None if one of them was not written."""
    written = [part for part in parts if part is not None]
    if len(written) < len(parts):
        return None
    return WrittenFiles(
        [action for part in written for action in part.added], pa.concat_tables([part.keys for part in written])
    )


class FileWriters(Protocol):
    """Processes that write the files of packed runs."""

    def write(self, target: TargetFiles, run: PackedRun) -> WrittenFiles | None:
        """Return the written files; None if this process has to write the run."""
        ...

    def record(self, writer: RunWriter, byte_count: int, seconds: float) -> None:
        """Record how long it took to write a run into a log, with the commit."""
        ...
