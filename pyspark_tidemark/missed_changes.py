"""`python -m pyspark_tidemark.missed_changes`: the program behind `cdcctl table resume --archive`; prints JSON.

    STATE ARCHIVE LAKE CONFIG READER SPILL TABLE...

CONFIG: the configuration of the daemons, or empty. SPILL: a folder for large transactions.

A table that was paused for too long is *given up*: the outbox no longer has its changes, and it is diverged. Here they
are decoded from archived WAL instead, from the position of the table up to that of the lake, and written as those of a
resumed table. Until the last one is written the table remains given up, at the position that it has reached: a command
that was interrupted is repeated. What a later copy of the table contains cannot be distinguished from its changes, so a
table that was copied since is refused.

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
from tidemark.model.change import ChangeBatch, CopyBoundary
from tidemark.model.errors import ConfigError, WalGap
from tidemark.model.lsn import INVALID_OID
from tidemark.model.position import NO_SEQUENCE, Position
from tidemark.pipeline.delta_log.applied import BEFORE_ALL
from tidemark.pipeline.delta_log.lineage import TableDiverged
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.faults import OPEN_END, Fault, FaultKind
from tidemark.pipeline.lake.lake_table import LakeTable
from tidemark.pipeline.lake.layout import constants_of
from tidemark.pipeline.lake.positions import TableId, TablePosition, TableState
from tidemark.pipeline.lake.report import LakeDelta, OpenedLake
from tidemark.pipeline.landing.portions import PORTION_BYTES
from tidemark.pipeline.replay.program import exit_at_once, run
from tidemark.pipeline.replay.recorded_events import RecordedEvents
from tidemark.pipeline.sinks.sinks import Lake
from tidemark.pipeline.sinks.steps import TableItem, before
from tidemark.runtime.replay.offline import ends_early
from tidemark.runtime.seed.copy_plan import is_changed_selection

_RECOPY = "copy its present rows: cdcctl table recopy"

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
    """The changes that a given up table lacks: those after a position."""

    table: TablePosition
    after: Position
    parts: Sequence[str]  # that lack them: log, replica

    @property
    def of(self) -> TableId:
        """Return database and relation."""
        return self.table.database, self.table.relation

    @property
    def name(self) -> str:
        """Return the name of the table in messages."""
        return self.table.qualified_name


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

    def missed(self, name: str) -> Missed:
        """Return what a table lacks; raise `NoTable`, `NotGivenUp`, `NotFromArchive` or `ArchiveEndsEarly`."""
        table = self._opened.find(name)
        if table.relation == INVALID_OID:
            raise NotFromArchive(f"{name} is a log of messages", hint="continue it with cdcctl spark accept-break")
        deltas = [delta for delta in self._opened.deltas(table) if _given_up(delta) is not None]
        if not deltas:
            reason = f"{name} was not given up while it was paused: it is {_condition(table)}"
            raise NotGivenUp(reason, hint=_RECOPY if table.state is TableState.DIVERGED else None)
        events = RecordedEvents(self._held.root, (table.database, table.relation), OPEN_END)
        position = min(fault.position for delta in deltas if (fault := _given_up(delta)) is not None)
        if position == BEFORE_ALL:
            position = _before_first(table, events)
        missed = Missed(table, position, [delta.name for delta in deltas])
        self._check_copies(missed, events, deltas)
        self._check_archive(missed)
        return missed

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
        except (WalGap, NoBase) as error:
            raise MissedWalLost(f"{missed.name}: {error}", hint=f"{error.hint}; or {_RECOPY}") from error
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

    def _portions(self, missed: Missed) -> Iterator[list[TableItem]]:
        """Yield the missed items in order, of a bounded number of bytes at a time."""
        end, found, byte_count = self._applied.position, list[TableItem](), 0
        for group in self._wal.groups_after(missed.of, missed.after, end):
            items = (_until(item, end) for item in self._held.items(group, missed.table.database))
            found += [item for item in items if item is not None]
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

    def _check_copies(self, missed: Missed, events: RecordedEvents, deltas: Sequence[LakeDelta]) -> None:
        """Raise `NotFromArchive` if rows came, or come, by another way than the changes; or did not come."""
        name, after = missed.name, missed.after
        lacks = f"it lacks its changes after {after}"
        gap = next((gap for gap in missed.table.breaks if gap.to > after), None)
        if gap is not None:
            raise NotFromArchive(f"{name}: {lacks}, and its log has a break {gap}")
        events_after = self._lake.positions.events_after
        if events_after is None or events_after > after:
            raise NotFromArchive(f"{name}: {lacks}, and the lake records no copies before {events_after}")
        copies = [event for event in events.between(after, None) if isinstance(event.event, CopyBoundary)]
        if copies:
            raise NotFromArchive(f"{name}: {lacks}, and it was copied since, at {copies[0].position}")
        if any(LakeTable(delta.uri, delta.app).applied.copy_sequence for delta in deltas):
            raise NotFromArchive(f"{name}: its copy had not ended when it was paused")
        copy = self._wal.view.copies.get(missed.of)
        if copy is not None and (copy.is_open or copy.lx > after.commit_lsn):
            raise NotFromArchive(
                f"{name}: a copy of it is not in the lake yet",
                hint="let the copy end, and the pipeline write it: it replaces the rows of the table",
            )

    def _check_archive(self, missed: Missed) -> None:
        """Raise an error if the archive does not have the WAL from the position of a table up to that of the lake."""
        archive, end = self._wal.archive, self._applied.position
        for position in (missed.after, end):
            fork_lsn = archive.history.fork_before(position.timeline, position.commit_lsn + 1)
            if position.timeline not in archive.history or fork_lsn is not None:
                raise NotFromArchive(
                    f"{missed.name}: {position} is not in the history of {archive.folder}, which ends on timeline "
                    f"{archive.history.timeline}",
                    hint=f"give the archive of the node that the capture follows; or {_RECOPY}",
                )
        if archive.last_lsn() <= end.commit_lsn:
            raise ends_early(archive, archive.last_lsn(), end.commit_lsn)


def _faults(table: TablePosition) -> Mapping[str, Fault | None]:
    return {"log": table.log.fault, "replica": table.replica.fault}


def _given_up(delta: LakeDelta) -> Fault | None:
    fault = delta.entry.fault
    return fault if fault is not None and fault.is_given_up else None


def _condition(table: TablePosition) -> str:
    """Return the state of a table with the reasons why it is not written."""
    reasons = [f"its {name} is {fault.kind.value}: {fault.reason}" for name, fault in _faults(table).items() if fault]
    return "; ".join([table.state.value, *reasons])


def _before_first(table: TablePosition, events: RecordedEvents) -> Position:
    """Return the place before the first event of a table of which nothing was ever written."""
    if not events.events:
        raise NotFromArchive(f"{table.qualified_name}: the lake has no record of where its changes begin")
    first = events.events[0].position
    return replace(first, ordinal=first.ordinal - 1)


def _until(item: TableItem, end: Position) -> TableItem | None:
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
        return {missed.name: tables.feed(missed) for missed in [tables.missed(name) for name in names]}


if __name__ == "__main__":
    arm_from_environment(Failpoint)
    exit_at_once(run(partial(_resumed, *sys.argv[1:])))
