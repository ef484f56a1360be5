"""`python -m pyspark_tidemark.missed_changes`: the program behind `cdcctl table resume --archive`; prints JSON.

    STATE ARCHIVE LAKE CONFIG READER SPILL TABLE...

CONFIG: the configuration of the daemons, or empty. SPILL: a folder for large transactions.

A table that was paused, or whose replica was deferred, for too long is *given up*: the outbox no longer has its
changes, and it is diverged. So is a log of messages. Here they are decoded from archived WAL instead, from where the
table was complete up to the position of the lake, and written as those of a resumed table. Until the last one is
written the table remains given up, at the position that it has reached: a command that was interrupted is repeated.
What a later copy of the table contains cannot be distinguished from its changes, so a table that was copied since is
refused.

It is here because it decodes with `tidemark.runtime` and writes tables of `tidemark.pipeline`.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pyspark_tidemark.held_lake import HeldLake, LakePlaces, OtherTransforms, held_lake
from tidemark.io.host.failpoints import arm_from_environment
from tidemark.io.state.history_files import NoBase
from tidemark.model.change import ChangeBatch, CopyBoundary, LogicalMessage
from tidemark.model.errors import ConfigError, WalGap
from tidemark.model.lsn import INVALID_OID
from tidemark.model.position import NO_SEQUENCE, Position
from tidemark.pipeline.delta_log.applied import BEFORE_ALL
from tidemark.pipeline.delta_log.lineage import TableDiverged
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.faults import OPEN_END, Fault, FaultKind
from tidemark.pipeline.lake.folders import MESSAGES
from tidemark.pipeline.lake.layout import constants_of
from tidemark.pipeline.lake.positions.table_position import TableId, TablePosition, TableState
from tidemark.pipeline.lake.report import OpenedLake
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.landing.portions import PORTION_BYTES
from tidemark.pipeline.replay.program import exit_at_once, run
from tidemark.pipeline.replay.recorded_events import RecordedEvents
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.steps import TableItem, before
from tidemark.runtime.first_copy.copy_feeding import GENERATION_SHIFT
from tidemark.runtime.replay.offline import WAIT_FOR_SEGMENT, ends_early
from tidemark.runtime.seed.copy_plan import is_changed_selection
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress

_RECOPY = "copy its present rows: cdcctl table recopy"
_ACCEPT = "continue it without them: cdcctl spark accept-break"

_NO_COPY = CopyProgress(CopyPhase.LEFT, 0)

ResumedReport = Mapping[str, Mapping[str, str | int]]
"""What was written, by the name of the table."""


class NotGivenUp(ConfigError):
    """A table whose changes were not given up while it was paused."""

    hint = "a paused table catches up from the outbox: omit --archive; cdcctl lake list shows the state of each table"


class OtherSelection(ConfigError):
    """The configuration selects other tables than that of the daemons, and so may have other settings as well."""

    hint = OtherTransforms.hint


class NotFromArchive(ConfigError):
    """A table that lacks other changes than those that archived WAL has."""

    hint = _RECOPY


class MissedWalLost(WalGap):
    """The archive or the catalog history does not have all changes that a table lacks."""


@dataclass(frozen=True, slots=True)
class Missed:
    """The changes, or messages, that a given up table lacks: those after a position."""

    table: TablePosition
    after: Position
    parts: Sequence[str]  # that lack them: log, replica

    @property
    def of(self) -> TableId:
        """Return database and relation."""
        return self.table.database, self.table.relation

    @property
    def is_table(self) -> bool:
        """Return whether it is not the log of messages of a database."""
        return self.table.relation != INVALID_OID

    @property
    def lacks(self) -> str:
        """Return what it lacks, in messages."""
        return f"it lacks its changes after {self.after}"

    @property
    def name(self) -> str:
        """Return the name of the table in messages; a log of messages is called by its folder."""
        return self.table.qualified_name if self.is_table else self.table.folder


class GivenUpTables:
    """The given up tables of a lake that no pipeline writes meanwhile; used by one thread."""

    def __init__(self, held: HeldLake) -> None:
        """Open the lake; raise `NoLake` if it is none of Delta tables."""
        self._held = held
        self._opened = OpenedLake(held.root)
        self._wal = held.wal
        self._lake = Lake(
            held.root,
            held.wal.view.identity,
            held.shapes,
            constants_of,
            held.databases,
            dialects=held.databases.dialects,
            accepted=partial(held.found.capture.accepted_breaks, held.reader),
            config=held.wal.config.lake,
        )
        self._applied = self._lake.positions.applied

    def find(self, name: str) -> Sequence[TablePosition]:
        """Return the table with a name or folder; of `messages`, the logs of all databases. Raise `NoTable`."""
        logs = [table for table in self._opened.tables if table.relation == INVALID_OID] if name == MESSAGES else []
        return [table for table in logs if _faults_given_up(table)] or logs or [self._opened.find(name)]

    def missed(self, table: TablePosition) -> Missed:
        """Return what a table lacks; raise `NotGivenUp`, `NotFromArchive` or `ArchiveEndsEarly`."""
        faults = _faults_given_up(table)
        missed = Missed(table, BEFORE_ALL, list(faults))
        if not faults:
            reason = f"{missed.name} was not given up while it was paused: it is {_condition(table)}"
            raise NotGivenUp(reason, hint=_remedy(table) if table.state is TableState.DIVERGED else None)
        self._held.check_settings(table)
        events = RecordedEvents(self._held.root, missed.of, OPEN_END)
        missed = replace(missed, after=min(map(self._complete_to, faults.values())))
        if missed.after == BEFORE_ALL:
            missed = replace(missed, after=_before_first(missed, events))
        self._check_breaks(missed)
        if missed.is_table:
            self._check_copies(missed, events)
        self._check_archive(missed)
        return missed

    def _complete_to(self, fault: Fault) -> Position:
        """Return a position up to which a table has all changes, on the timelines of the archive if there is one.

        NB: the position of the lake at the pause may be on a branch that the node has left since.
        """
        contained = fault.contained.position
        return contained if self._is_in_history(contained) else fault.position

    def feed(self, missed: Missed) -> Mapping[str, str | int]:
        """Write the missed changes of a table; return the report."""
        rows, of = 0, missed.of
        try:
            for items in self._portions(missed):
                self._held.hold.check_idle()
                self._lake.catch_up(
                    of, [(self._applied.sequence, item) for item in items], NO_SEQUENCE, FaultKind.DIVERGED
                )
                self._check_written(missed, is_given_up=True)
                rows += sum(item.row_count for item in items if isinstance(item, ChangeBatch))
                rows += 0 if missed.is_table else len(items)
        except (WalGap, NoBase) as error:
            raise MissedWalLost(f"{missed.name}: {error}", hint=f"{error.hint}; or {_remedy(missed.table)}") from error
        self._held.hold.check()
        self._lake.catch_up(of, [], self._applied.sequence, FaultKind.DIVERGED)
        self._check_written(missed, is_given_up=False)
        table = self._lake.positions.tables[of]
        return {
            "from": str(missed.after),
            "to": str(self._applied.position),
            "rows": rows,
            "written": ", ".join(missed.parts),
            "state": table.state.value,
        }

    def _portions(self, missed: Missed) -> Iterator[list[TableItem | LogicalMessage]]:
        """Yield the missed items in order, of a bounded number of bytes at a time."""
        end, found, byte_count = self._applied.position, list[TableItem | LogicalMessage](), 0
        groups = self._wal.groups_after if missed.is_table else self._wal.messages_after
        items = self._held.items if missed.is_table else self._held.messages
        for group in groups(missed.of, missed.after, end):
            parts = (_until(item, end) for item in items(group, missed.table.database))
            found += [part for part in parts if part is not None]
            byte_count += group.byte_count
            if byte_count >= PORTION_BYTES:
                yield found
                found, byte_count = [], 0
        if found:
            yield found

    def _check_written(self, missed: Missed, *, is_given_up: bool) -> None:
        """Raise `TableDiverged` if a part could not be written: it is damaged, or another writer changed it."""
        for name, fault in _faults(self._lake.positions.tables[missed.of]).items():
            if name in missed.parts and fault is not None and not (is_given_up and fault.is_given_up):
                raise TableDiverged(f"{missed.name}: its {name} is {fault.kind.value}: {fault.reason}")

    def _check_breaks(self, missed: Missed) -> None:
        """Raise `NotFromArchive` if changes are missing that were not delivered."""
        gap = next((gap for gap in missed.table.breaks if gap.to > missed.after), None)
        if gap is not None:
            raise NotFromArchive(
                f"{missed.name}: {missed.lacks}, and its log has a break {gap}", hint=_remedy(missed.table)
            )

    def _check_copies(self, missed: Missed, events: RecordedEvents) -> None:
        """Raise `NotFromArchive` if rows came, or come, by another way than the changes."""
        name, after, lacks = missed.name, missed.after, missed.lacks
        events_after = self._lake.positions.events_after
        if events_after is None or events_after > after:
            raise NotFromArchive(f"{name}: {lacks}, and the lake records no copies before {events_after}")
        copies = [event for event in events.between(after, None) if isinstance(event.event, CopyBoundary)]
        if copies:
            raise NotFromArchive(f"{name}: {lacks}, and it was copied since, at {copies[0].position}")
        deltas = [delta for delta in self._opened.deltas(missed.table) if delta.name in missed.parts]
        if any(LakeTable(delta.uri, delta.app).applied.copy_sequence for delta in deltas):
            raise NotFromArchive(f"{name}: its copy had not ended when it was paused")
        copy = self._wal.view.copies.get(missed.of, _NO_COPY)
        begin = copy.lx, copy.generation << GENERATION_SHIFT
        if copy.is_open or begin > (after.commit_lsn, after.ordinal):
            raise NotFromArchive(
                f"{name}: a copy of it is not in the lake yet",
                hint="let the copy end, and the pipeline write it: it replaces the rows of the table",
            )

    def _check_archive(self, missed: Missed) -> None:
        """Raise an error if the archive does not have the WAL from the position of a table up to that of the lake."""
        archive, end = self._wal.archive, self._applied.position
        for position in (missed.after, end):
            if not self._is_in_history(position):
                raise NotFromArchive(
                    f"{missed.name}: {position} is not in the history of {archive.folder}, which ends on timeline "
                    f"{archive.history.timeline}",
                    hint=f"give the archive of the node that the capture follows; or {_remedy(missed.table)}",
                )
        if archive.last_lsn() <= end.commit_lsn:
            raise ends_early(archive, archive.last_lsn(), end.commit_lsn, hint=WAIT_FOR_SEGMENT)

    def _is_in_history(self, position: Position) -> bool:
        """Return whether a position is on a timeline of the archive, before the next one began."""
        history = self._wal.archive.history
        is_left = history.fork_before(position.timeline, position.commit_lsn + 1) is not None
        return position.timeline in history and not is_left


def _faults(table: TablePosition) -> Mapping[str, Fault | None]:
    return {"log": table.log.fault, "replica": table.replica.fault}


def _faults_given_up(table: TablePosition) -> Mapping[str, Fault]:
    return {name: fault for name, fault in _faults(table).items() if fault is not None and fault.is_given_up}


def _remedy(table: TablePosition) -> str:
    return _RECOPY if table.relation != INVALID_OID else _ACCEPT


def _condition(table: TablePosition) -> str:
    """Return the state of a table with the reasons why it is not written."""
    reasons = [f"its {name} is {fault.kind.value}: {fault.reason}" for name, fault in _faults(table).items() if fault]
    return "; ".join([table.state.value, *reasons])


def _before_first(missed: Missed, events: RecordedEvents) -> Position:
    """Return the place before the first event of a table of which nothing was ever written."""
    if not events.events:
        reason = f"{missed.name}: the lake has no record of where its changes begin"
        raise NotFromArchive(reason, hint=_remedy(missed.table))
    first = events.events[0].position
    return replace(first, ordinal=first.ordinal - 1)


def _until(item: TableItem | LogicalMessage, end: Position) -> TableItem | LogicalMessage | None:
    """Return what an item has up to a position; None: nothing."""
    if isinstance(item, ChangeBatch):
        return before(item, replace(end, ordinal=end.ordinal + 1)) if item.row_count else None
    return item if item.position <= end else None


def _resumed(*arguments: str) -> ResumedReport:
    state, archive, lake, config, reader, spill, *names = arguments
    places = LakePlaces(Path(state), Path(archive), lake, Path(config) if config else None, reader, Path(spill))
    with held_lake(places) as held:
        if is_changed_selection(held.wal.config.select, held.wal.config.copy, held.wal.view):
            raise OtherSelection("the configuration does not select the tables that the daemons have")
        tables = GivenUpTables(held)
        found = [tables.missed(table) for name in names for table in tables.find(name)]
        return {missed.name: tables.feed(missed) for missed in found}


if __name__ == "__main__":
    arm_from_environment(Failpoint)
    exit_at_once(run(partial(_resumed, *sys.argv[1:])))
