"""Where a replay begins and ends: a moment at which the contents are known, and the first change after the moment.

The contents of a table are known at the end of a copy, and where it was created or truncated. From there the log and
the events must be complete up to the moment; each reason why they may not be is named.
"""

from dataclasses import dataclass

from tidemark.model.change import (
    CopyBoundary,
    PartitionChange,
    PartitionEvent,
    SchemaChange,
    SchemaEffect,
    SchemaEvent,
    Truncation,
)
from tidemark.model.commit_time import CommitTime
from tidemark.model.lsn import INVALID_OID, format_lsn
from tidemark.model.position import Position
from tidemark.pipeline.delta_log.applied import BEFORE_ALL
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.positions.table_position import TablePosition
from tidemark.pipeline.replay.log_rows import LogRows
from tidemark.pipeline.replay.moment import LsnMoment, Moment
from tidemark.pipeline.replay.recorded_events import RecordedEvent, RecordedEvents
from tidemark.pipeline.replay.refusal import ReplayRefused

NOT_SELECTED_HINT = (
    "select the table (select.tables) and copy it with cdcctl table recopy {table}: its rows are known from the copy on"
)


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """The items from `base` on, before the position `end` (None: all of the log)."""

    base: RecordedEvent
    end: Position | None


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedTable:
    """What a lake has of the table."""

    positions: Positions
    table: TablePosition
    events: RecordedEvents
    log: LogRows

    def range_to(self, moment: Moment) -> ReplayRange:
        """Return where a replay to `moment` begins and ends; raise `ReplayRefused` if the lake does not show this."""
        base = self._copy_before(moment)
        if base is None:
            base = next((one for one in self.events.events if self._is_known(one) and _empties(one)), None)
        if base is None or (not _is_copy(base) and moment.is_before(base.position.commit_lsn, base.time_us)):
            raise ReplayRefused(f"{self._name}: {self._no_base(moment, base)}")
        copy = self._next_copy(base)
        end = self._end(base, moment)
        emptied = [one for one in self.events.between(base.position, end) if _empties(one)]
        base = emptied[-1] if emptied else base
        self._check_expired(base)
        self._check_breaks(base, end)
        self._check_end(moment, base, end, copy)
        self._check_times(moment, base, end)
        self._check_columns(base, end)
        self._check_events(base, end)
        return ReplayRange(base, end)

    @property
    def _name(self) -> str:
        return self.table.qualified_name

    def _copies(self) -> list[tuple[RecordedEvent, CopyBoundary]]:
        """Return the begins of complete copies, each with its end."""
        found: list[tuple[RecordedEvent, CopyBoundary]] = []
        begun: RecordedEvent | None = None
        for one in self.events.events:
            if not isinstance(one.event, CopyBoundary):
                continue
            if one.event.begin:
                begun = one
            elif begun is not None and _generation(begun) == one.event.generation:
                found.append((begun, one.event))
                begun = None
        return found

    def _copy_before(self, moment: Moment) -> RecordedEvent | None:
        """Return the begin of the last complete copy before `moment`."""
        found = None
        for begin, end in self._copies():
            if self._is_known(begin) and moment.shows_copy(end.seen_lsn, end.seen_time_us):
                found = begin
        return found

    def _next_copy(self, base: RecordedEvent) -> RecordedEvent | None:
        """Return the begin of the first copy after `base`, complete or not."""
        later = self.events.events[self.events.events.index(base) + 1 :]
        return next((one for one in later if one.begins_copy), None)

    def _is_known(self, one: RecordedEvent) -> bool:
        """Return whether `_events` has everything from an event on."""
        after = self.positions.events_after
        return after is not None and one.position > after

    def _no_base(self, moment: Moment, emptied: RecordedEvent | None) -> str:
        after = self.positions.events_after
        if after is None:
            return "an earlier version of Tidemark wrote this lake last, and did not record events"
        copies = self._copies()
        known = [(begin, end) for begin, end in copies if self._is_known(begin) and end.seen_lsn]
        if emptied is not None and (not known or emptied.position < known[0][0].position):
            what = "a TRUNCATE" if isinstance(emptied.event, Truncation) else "its creation"
            return f"{moment} is before the first event that shows its contents, {what} at {emptied.position}"
        if known:
            first = known[0][1]
            seen = f"{format_lsn(first.seen_lsn)} ({CommitTime(first.seen_time_us)})"
            return f"{moment} is before the first copy of it with recorded events, which shows the table at {seen}"
        if copies:
            return f"it was copied before events were recorded, which they are after {after}"
        if self.log.expired:
            return f"{self._deleted_rows}, and it has neither been copied completely nor emptied since"
        since = "" if after == BEFORE_ALL else f" after {after}"
        return f"the log has no complete copy of it{since}, and neither its creation nor a TRUNCATE"

    def _end(self, base: RecordedEvent, moment: Moment) -> Position | None:
        """Return the position of the first change after the moment."""
        places = [
            one.position
            for one in self.events.between(base.position, None)
            if one.event is not None and not _is_copy(one) and moment.is_before(one.position.commit_lsn, one.time_us)
        ]
        row = self.log.first(base.position, moment.later_rows)
        return min([*places[:1], *([row] if row is not None else [])], default=None)

    def _check_end(self, moment: Moment, base: RecordedEvent, end: Position | None, copy: RecordedEvent | None) -> None:
        if copy is not None:
            if end is None or end > copy.position:
                raise ReplayRefused(
                    f"{self._name}: it was copied again at {copy.position}, and the log has no change of it between "
                    f"{moment} and that copy: changes between them may be missing"
                )
            if copy.position.timeline != base.position.timeline and end.commit_lsn > copy.position.commit_lsn:
                raise ReplayRefused(
                    f"{self._name}: {moment} is on timeline {end.timeline}, which the node left for timeline "
                    f"{copy.position.timeline} at {format_lsn(copy.position.commit_lsn)}"
                )
        if end is not None:
            return
        fault = self.table.log.fault
        if fault is not None:
            raise ReplayRefused(
                f"{self._name}: its log is {fault.kind.value} after {fault.position}, before {moment}: {fault.reason}"
            )
        if not moment.is_reached(self.positions):
            newest = CommitTime(self.positions.newest_commit_us)
            raise ReplayRefused(
                f"the lake does not contain all transactions before {moment}: it ends at "
                f"{self.positions.applied.position}, with a transaction of {newest}",
                hint="let the pipeline continue until a later transaction is in the lake, or choose an earlier moment",
            )

    @property
    def _deleted_rows(self) -> str:
        return f"log_keep_days deleted rows of transactions up to {format_lsn(self.log.expired)}"

    def _check_expired(self, base: RecordedEvent) -> None:
        """Raise `ReplayRefused` if rows after `base` may have been deleted."""
        if base.position.commit_lsn <= self.log.expired:
            raise ReplayRefused(f"{self._name}: {self._deleted_rows}, and the replay would begin at {base.position}")

    def _check_breaks(self, base: RecordedEvent, end: Position | None) -> None:
        """Raise `ReplayRefused` if the log has a break after `base`.

        NB: also for moments before the break, unless the table was not selected in it: another writer may have changed
        earlier rows, and the log may be new.
        """
        for gap in self.table.breaks:
            if gap.to <= base.position:
                continue
            if not gap.keeps_earlier:
                raise ReplayRefused(
                    f"{self._name}: its log has a break: changes after {gap.after} and before {gap.to} are missing, "
                    f"and earlier ones may have been changed: {gap.reason}",
                    hint=f"choose a moment after the copy at {gap.to}, or name a base backup (--base-backup)",
                )
            if end is None or end > gap.after:
                until = " are missing" if gap.is_open else f" and before {gap.to} are missing"
                raise ReplayRefused(
                    f"{self._name}: its changes after {gap.after}{until}: {gap.reason}",
                    hint=NOT_SELECTED_HINT.format(table=self._name),
                )

    def _check_times(self, moment: Moment, base: RecordedEvent, end: Position | None) -> None:
        """Raise `ReplayRefused` if it is unknown whether an event is before a time: its own time was not recorded."""
        if isinstance(moment, LsnMoment):
            return
        events = [one for one in self.events.between(base.position, end) if one.event and not _is_copy(one)]
        while events and not events[-1].time_us:
            last = events.pop()
            if self.log.has_dated(last.position, end):
                return
            raise ReplayRefused(
                f"{self._name}: an earlier version of Tidemark delivered the {last.kind} at {last.position} without "
                f"its commit time, so it is unknown whether that is before {moment}",
                hint="name an LSN as the moment",
            )

    def _check_columns(self, base: RecordedEvent, end: Position | None) -> None:
        """Raise `ReplayRefused` if the log lacks columns of the table."""
        reduced = self.events.first_reduced(base, end)
        if reduced is not None:
            raise ReplayRefused(
                f"{self._name}: its log lacks columns that the table had from {reduced.position} on, because of "
                "schema_policy = 'ignore' in [[lake.tables]]"
            )

    def _check_events(self, base: RecordedEvent, end: Position | None) -> None:
        """Raise `ReplayRefused` for events between `base` and `end` after which the contents are unknown."""
        dropped: RecordedEvent | None = None
        for one in self.events.between(base.position, end):
            if isinstance(one.event, PartitionEvent) and one.event.change is PartitionChange.ATTACH:
                raise ReplayRefused(
                    f"{self._name}: {one.event.partition.qualified_name} was attached at {one.position}, with rows "
                    "that are not in the log"
                )
            if isinstance(one.event, SchemaEvent):
                is_drop, is_rewritten = one.event.change is SchemaChange.DROP, _is_rewritten(one.event)
                dropped = one if is_drop else None if is_rewritten else dropped
        if dropped is not None:
            raise ReplayRefused(f"{self._name}: it was dropped at {dropped.position}")


def _is_copy(one: RecordedEvent) -> bool:
    return isinstance(one.event, CopyBoundary)


def _generation(one: RecordedEvent) -> int:
    assert isinstance(one.event, CopyBoundary), one
    return one.event.generation


def _is_rewritten(event: SchemaEvent) -> bool:
    """Return whether a table is created with rows that follow in the log: it was unlogged before."""
    return event.change is SchemaChange.CREATE and event.effect is SchemaEffect.REWRITE


def _empties(one: RecordedEvent) -> bool:
    """Return whether a table is empty after an event that a transaction wrote, apart from the rows that follow."""
    match one.event:
        case Truncation(partition=partition):
            return partition == INVALID_OID and bool(one.time_us)
        case SchemaEvent(change=SchemaChange.CREATE, effect=SchemaEffect.METADATA, brings_rows=False):
            return bool(one.time_us)
        case _:
            return False
