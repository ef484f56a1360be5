"""Plans ranges of an archive on the driver, and decodes each on an executor.

An executor needs the archive and the state's folder `history`, under the same paths as the driver; it opens no LMDB.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_tidemark.archive_options import ArchiveOptions
from pyspark_tidemark.archived_groups import archived_groups
from tidemark.decode.catalog.databases import MappedDialects
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.engine.wal_ranges import PlannedRange, plan_ranges
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.host.loaded_objects import skipping_loaded_objects
from tidemark.io.state.history_files import base_for
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.io.state.state_views import StateView
from tidemark.model.change import ChangeBatch, ChangeGroup, Truncation
from tidemark.model.commit_time import CommitTime
from tidemark.model.errors import StateError
from tidemark.model.lsn import Lsn, format_lsn
from tidemark.model.transaction_map import NO_END
from tidemark.pipeline.source.remedies import stating_remedies
from tidemark.pipeline.source.rows.change_form import ChangeForm
from tidemark.pipeline.source.rows.exact_values import UnfitValues
from tidemark.pipeline.source.rows.query_table import QueryTable
from tidemark.runtime.replay.commit_times import TimeRange, begin_lsn
from tidemark.runtime.replay.decode_run import MEMORY_BYTES_DEFAULT
from tidemark.runtime.replay.end_marks import has_end
from tidemark.runtime.replay.history_start import HistoryStart, LsnRange, begin_from_history
from tidemark.runtime.replay.offline import cell_bytes_of, check_same_cluster, ends_before, ends_early
from tidemark.runtime.replay.range_start import begin_range
from tidemark.runtime.replay.transaction_mapping import MAP_FILE, MappedWal, map_wal, map_without_base
from tidemark.wire.transaction_map import load_map

PARTITIONS_MAX = 256
EARLIER_VALUES = (
    "the columns are those at the end of the query's range: read the changes from before the column got another type "
    "by a query that ends there (`to`), and the others by one that begins there (`from`)"
)
NO_SEQUENCE = 0  # rows of an archive have no place in an outbox
_ORDER = [("_commit_lsn", "ascending"), ("_ordinal", "ascending")]


class MapReplaced(StateError):
    """The kept map is not the one by which the query was planned."""

    hint = "run the query again: another command has made the transaction map for another part of the archive"


@dataclass(frozen=True)
class ArchiveRange(InputPartition):
    """A range of the plan."""

    part: PlannedRange
    is_last: bool


@dataclass(frozen=True)
class PlannedArchive:
    """An archive, its state and the map of the WAL that a query needs."""

    archive: ArchiveFolder
    view: StateView
    mapped: MappedWal
    from_lsn: Lsn | None
    to_lsn: Lsn | None
    is_divisible: bool

    @classmethod
    def open(cls, options: ArchiveOptions) -> "PlannedArchive":
        """Open the folders and map the WAL; the map is kept for the executors."""
        folder = StateFolder(options.state_folder)
        with StateStore.open(folder, read_only=True) as store:
            view = store.view()
        archive = ArchiveFolder(options.archive, of=view.identity.system_identifier)
        check_same_cluster(archive, view.identity.system_identifier)
        begin, end = options.begin, options.end
        from_lsn = begin_lsn(archive, view.history, begin) if isinstance(begin, CommitTime) else begin
        to_lsn = None if isinstance(end, CommitTime) else end
        start = begin_from_history(view, folder.history, from_lsn, memory_bytes=MEMORY_BYTES_DEFAULT, archive=archive)
        first_lsn = start.from_lsn or min(base.lsn for base in view.history.bases)
        has_base = base_for(view.history, first_lsn).lsn >= archive.first_lsn()
        cell_bytes = cell_bytes_of(archive)
        if has_base:
            mapped = map_wal(
                view,
                folder.history,
                archive,
                cell_bytes=cell_bytes,
                from_lsn=first_lsn,
                to_lsn=to_lsn,
                map_file=folder.history / MAP_FILE,
                file_mode=folder.file_mode,
            )
        else:
            mapped = map_without_base(
                view, folder.history, archive, cell_bytes=cell_bytes, begin_lsn=start.lsn, to_lsn=to_lsn
            )
        end_lsn = mapped.kept.transactions.end_lsn
        if mapped.stopped_by is not None:
            raise mapped.stopped_by
        if to_lsn is not None and end_lsn < to_lsn:
            raise ends_early(archive, end_lsn, to_lsn)
        return cls(archive, view, mapped, start.from_lsn, to_lsn, has_base)

    def ranges(self) -> list[PlannedRange]:
        """Divide the WAL into ranges."""
        found = self.mapped.kept.transactions
        count = min(len(found.cuts) + 1, PARTITIONS_MAX) if self.is_divisible else 1
        return list(plan_ranges(found, self.from_lsn, self.to_lsn, count=count))


class ArchiveReader(DataSourceReader):
    """Reads the changes of a table, ordered by (commit LSN, ordinal) within and across partitions."""

    def __init__(self, options: ArchiveOptions, planned: PlannedArchive, table: QueryTable, wanted: pa.Schema) -> None:
        self._options = options
        self._view = planned.view
        self._ranges = planned.ranges()
        self._is_requested = planned.from_lsn is not None
        self._table = table
        self._wanted = wanted

    def partitions(self) -> list[InputPartition]:
        """Return the ranges."""
        return [ArchiveRange(part, part is self._ranges[-1]) for part in self._ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode a range."""
        assert isinstance(partition, ArchiveRange), partition
        with skipping_loaded_objects(), stating_remedies():
            yield from self._read(partition.part, self._times(), is_last=partition.is_last)

    def _read(self, part: PlannedRange, times: TimeRange, *, is_last: bool) -> Iterator[pa.RecordBatch]:
        archive = ArchiveFolder(self._options.archive, of=self._view.identity.system_identifier)
        start = self._start(part, archive)
        database = self._table.described_by[0]
        dialects = MappedDialects(start.mirrors, start.types, self._view.identity.server_major)
        builder = GroupBuilder(
            dialects, selected=lambda relation: self._table.contains(database, relation, lambda: None)
        )
        lsns, form = LsnRange(part.from_lsn, part.to_lsn), ChangeForm(self._table, self._wanted_with_order())
        for group in archived_groups(archive, start, builder, lsns, times):
            yield from self._rows(group, form)
        if is_last and not times.is_reached:
            raise ends_before(archive, start, times)
        last = builder.flush()
        if last is not None:
            yield from self._rows(last, form)

    def _start(self, part: PlannedRange, archive: ArchiveFolder) -> HistoryStart:
        history = StateFolder(self._options.state_folder).history
        if part.start is None:
            return begin_from_history(
                self._view, history, part.from_lsn, memory_bytes=MEMORY_BYTES_DEFAULT, archive=archive
            )
        kept = load_map((history / MAP_FILE).read_bytes(), str(history / MAP_FILE))
        cut = next((cut for cut in kept.transactions.cuts if cut.lsn == part.from_lsn), None)
        if cut is None or not (cut.last_end == NO_END or has_end(archive, cut.last_end)):
            raise MapReplaced(f"{history / MAP_FILE} has no cut of this archive at {format_lsn(part.from_lsn or 0)}")
        return begin_range(
            self._view,
            history,
            kept,
            part,
            memory_bytes=MEMORY_BYTES_DEFAULT,
            is_requested=self._is_requested,
        )

    def _times(self) -> TimeRange:
        begin, end = self._options.begin, self._options.end
        return TimeRange(begin if isinstance(begin, CommitTime) else None, end if isinstance(end, CommitTime) else None)

    def _wanted_with_order(self) -> pa.Schema:
        """Return the columns of the query, and those by which rows are ordered."""
        types = {"_commit_lsn": pa.int64(), "_ordinal": pa.int64()}
        missing = [pa.field(name, kind) for name, kind in types.items() if name not in self._wanted.names]
        return pa.schema([*self._wanted, *missing])

    def _rows(self, group: ChangeGroup, form: ChangeForm) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a group in order."""
        database, parts = self._table.described_by[0], []
        for item in group.items:
            if isinstance(item, ChangeBatch) and item.database == database:
                parts.append(_rows_of(item, form))
            elif isinstance(item, Truncation) and item.database == database:
                parts.append(form.truncation(item, NO_SEQUENCE))
        if parts:
            found = pa.Table.from_batches(parts)
            ordered = found.sort_by(_ORDER) if len(parts) > 1 else found
            yield from ordered.select(self._wanted.names).combine_chunks().to_batches()


def _rows_of(batch: ChangeBatch, form: ChangeForm) -> pa.RecordBatch:
    try:
        return form.rows(batch, NO_SEQUENCE)
    except UnfitValues as error:
        raise UnfitValues(str(error), hint=EARLIER_VALUES) from error
