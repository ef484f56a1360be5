"""The changes of one table in archived WAL, decoded as the daemons of a capture decode those of a selected table."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark_tidemark.archived_groups import archived_groups
from tidemark.decode.catalog.databases import MappedDialects
from tidemark.decode.groups.delivery_filter import Copied, nothing_copied
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.decode.groups.partitions import RootOf
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.host.spill import SpillFolder
from tidemark.io.process.config import Config
from tidemark.io.state.state_views import StateView
from tidemark.model.change import ChangeGroup
from tidemark.model.commit_time import CommitTime
from tidemark.model.lsn import Lsn, Oid
from tidemark.model.position import Position
from tidemark.model.relation import Relation
from tidemark.model.snapshot import Visibility, parse_visibility
from tidemark.pipeline.lake.positions.table_position import TableId
from tidemark.runtime.first_copy.copies import Copies
from tidemark.runtime.replay.commit_times import first_end_lsn
from tidemark.runtime.replay.decode_run import MEMORY_BYTES_DEFAULT
from tidemark.runtime.replay.history_start import LsnRange, begin_from_history


@dataclass(frozen=True, slots=True)
class EarlierWal:
    """The archived WAL of a capture, decoded as its daemons would have decoded it with the table selected."""

    view: StateView
    history: Path
    archive: ArchiveFolder
    config: Config
    spill: Path

    def begin_lsn(self, begin: Lsn | CommitTime) -> Lsn:
        """Return where the changes begin; after a time that is reached nowhere, the end of the archive.

        NB: all commits behind the first one at or after a time are changes from then on, whatever their own times are:
        a log with a hole would never be completed.
        """
        if not isinstance(begin, CommitTime):
            return begin
        found = first_end_lsn(self.archive, self.view.history, begin)
        return self.archive.last_lsn() if found is None else found

    def groups(self, of: TableId, from_lsn: Lsn, end: Position) -> Iterator[ChangeGroup]:
        """Yield the changes of a table from an LSN on, in transactions up to that of the position `end`."""
        # NB: a log may begin inside the last transaction, after a part that was delivered without the table.
        return self._groups(of, LsnRange(from_lsn, Lsn(end.commit_lsn + 1)))

    def groups_after(self, of: TableId, after: Position, end: Position) -> Iterator[ChangeGroup]:
        """Yield the changes of a table after a position, without those that its first copy has; up to `end` as above.

        NB: the snapshot of a copy may be hours younger than its position.
        """
        copies, beginning = Copies(self.view), self.view.beginning
        return self._groups(
            of,
            LsnRange(after.commit_lsn, Lsn(end.commit_lsn + 1)),
            after=after,
            copied=copies.have if copies.snapshots else nothing_copied,
            copied_by=copies.snapshots,
            behind=parse_visibility(beginning.snapshot) if beginning is not None and beginning.snapshot else None,
        )

    def messages_after(self, of: TableId, after: Position, end: Position) -> Iterator[ChangeGroup]:
        """Yield the logical messages that the configuration selects, after a position; up to `end` as above.

        `of`: their log. It is no table: there are no rows with them.
        """
        lsns = LsnRange(after.commit_lsn, Lsn(end.commit_lsn + 1))
        return self._groups(of, lsns, after=after, selects_message=self.config.select.selection().selects_message)

    def _groups(
        self,
        of: TableId,
        lsns: LsnRange,
        *,
        after: Position | None = None,
        copied: Copied = nothing_copied,
        copied_by: Collection[Visibility] = (),
        behind: Visibility | None = None,
        selects_message: Callable[[str], bool] = lambda _prefix: False,
    ) -> Iterator[ChangeGroup]:
        start = begin_from_history(
            self.view,
            self.history,
            lsns.from_lsn,
            memory_bytes=MEMORY_BYTES_DEFAULT,
            spill=SpillFolder(self.spill),
            archive=self.archive,
        )
        selection = self.config.select.selection()
        builder = GroupBuilder(
            MappedDialects(start.mirrors, start.types, self.view.identity.server_major),
            selected=lambda relation: relation.oid == of[1],
            root_of=partial(_root_of, of[1], selection.root_of),
            excluded=selection.excluded_origins(),
            selects_message=selects_message,
            copied=copied,
            copied_by=copied_by,
            after=after,
            behind=behind,
        )
        yield from archived_groups(self.archive, start, builder, lsns)
        last = builder.flush()
        if last is not None:
            yield last


def _root_of(of: Oid, named: RootOf, lineage: Sequence[Relation]) -> Relation | None:
    """Return the table whose name changes get, as `named`; the table `of` gets its own also under an earlier name."""
    root = named(lineage)
    above = [each.oid for each in lineage]
    if of not in above or (root is not None and above.index(root.oid) > above.index(of)):
        return root
    return lineage[above.index(of)]
