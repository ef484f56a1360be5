"""The reasons why a log or replica is not written, and the resulting gap in a log."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from tidemark.model.errors import ConsumerFailed
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.model.position import NO_SEQUENCE, Position, Sequence
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.delta_log.lineage import NEVER_WRITTEN, Recorded


class UnfitSettings(ConsumerFailed):
    """Settings that a table does not permit, as it is now."""

    hint = "correct the setting in [[lake.tables]], restart the pipeline, then cdcctl table resume"


_POSITION = (pa.field("timeline", pa.int32()), pa.field("commit_lsn", pa.int64()), pa.field("ordinal", pa.int64()))
POSITION = pa.struct(_POSITION)
FAULT = pa.struct(
    [
        pa.field("kind", pa.string()),
        pa.field("reason", pa.string()),
        *_POSITION,
        pa.field("sequence", pa.int64()),  # of a paused or deferred table: the outbox keeps its changes after it
        # NULL: an earlier version of Tidemark recorded the fault
        pa.field("complete_to", POSITION),
        pa.field("is_given_up", pa.bool_()),
    ]
)
BREAK = pa.struct(
    [
        pa.field("reason", pa.string()),
        *_POSITION,  # of the last change before the break
        *(pa.field(f"to_{field.name}", field.type) for field in _POSITION),  # of the first change after the break
    ]
)


class FaultKind(Enum):
    """The condition for writing to a table again."""

    DIVERGED = "diverged"  # another writer changed it, or it is damaged: needs a new copy of the source's rows
    STOPPED = "stopped"  # a property restricts writes: the property must be removed
    PAUSED = "paused"  # writes to it failed: the operator must resume it
    DEFERRED = "deferred"  # a replica that is merged at intervals: its interval must have passed
    EXCLUDED = "excluded"  # the configuration says so


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a table is not written; `position` is that of its last written change.

    A paused or deferred table contains everything up to the outbox value `sequence`, and up to the position
    `complete_to`, which the lake had then. A table that `is_given_up` lacks the changes after that, and is otherwise
    intact: the outbox does not keep them any longer.
    """

    kind: FaultKind
    reason: str
    position: Position
    sequence: Sequence = NO_SEQUENCE
    complete_to: Position | None = None  # None: not recorded, or of another fault
    is_given_up: bool = False

    def given_up(self, why: str) -> "Fault":
        """Return the fault of the same table after the changes that it needs from the outbox were given up."""
        reason = f"it was {self.kind.value} ({self.reason}), and {why}"
        return Fault(FaultKind.DIVERGED, reason, self.position, complete_to=self.complete_to, is_given_up=True)

    @property
    def contained(self) -> Applied:
        """Return up to where the table contains all changes."""
        position = self.position if self.complete_to is None else max(self.position, self.complete_to)
        return Applied(self.sequence, position)


NOT_SELECTED = "the table was not selected"
OPEN_END = Position(TimelineId((1 << 31) - 1), Lsn((1 << 63) - 1), 0)  # the greatest that `_POSITION` can store


@dataclass(frozen=True, slots=True)
class LogBreak:
    """A gap in a log: changes after `after` and before `to` are missing, and earlier ones may have been changed.

    If the table was not selected meanwhile (`NOT_SELECTED`), earlier ones are as they were written.
    """

    reason: str
    after: Position
    to: Position

    @property
    def is_open(self) -> bool:
        """Return whether changes are still missing: the table is not selected."""
        return self.to == OPEN_END

    @property
    def keeps_earlier(self) -> bool:
        """Return whether earlier changes are as they were written."""
        return self.reason == NOT_SELECTED

    def __str__(self) -> str:
        return f"after {self.after}{'' if self.is_open else f', before {self.to}'}: {self.reason}"


@dataclass(frozen=True, slots=True)
class LakeEntry:
    """A log or a replica at the end of the pipeline's last write."""

    recorded: Recorded = NEVER_WRITTEN
    fault: Fault | None = None

    def is_faulty(self, kind: FaultKind) -> bool:
        """Return whether the fault is of `kind`."""
        return self.fault is not None and self.fault.kind is kind


UNTOUCHED = LakeEntry()


def target_columns(name: str, target: LakeEntry) -> dict[str, object]:
    """Return the columns of the positions table for the target with the given `name`."""
    fault = target.fault
    return {
        f"{name}_version": target.recorded.version,
        f"{name}_id": target.recorded.id,
        f"{name}_token": target.recorded.token,
        f"{name}_fault": fault
        and {
            "kind": fault.kind.value,
            "reason": fault.reason,
            **position_columns(fault.position),
            "sequence": fault.sequence,
            "complete_to": fault.complete_to and position_columns(fault.complete_to),
            "is_given_up": fault.is_given_up,
        },
    }


def parse_target(name: str, row: Mapping[str, object]) -> LakeEntry:
    """Parse the output of `target_columns`; a row of an earlier version of Tidemark has only the Delta version."""
    version, token, fault = row[f"{name}_version"], row.get(f"{name}_token"), row.get(f"{name}_fault")
    assert isinstance(version, int), name
    recorded = Recorded(version, str(row.get(f"{name}_id") or ""), token if isinstance(token, int) else None)
    if not isinstance(fault, dict):
        return LakeEntry(recorded)
    return LakeEntry(recorded, _parse_fault(fault))


def _parse_fault(row: Mapping[str, object]) -> Fault:
    kind, reason, sequence = FaultKind(row["kind"]), str(row["reason"]), row.get("sequence")
    is_given_up = row.get("is_given_up")
    if is_given_up is None:  # an earlier version of Tidemark recorded only the reason
        is_given_up = kind is FaultKind.DIVERGED and reason.startswith(("it was paused (", "it was deferred ("))
    return Fault(
        kind,
        reason,
        parse_position(row),
        Sequence(sequence) if isinstance(sequence, int) else NO_SEQUENCE,
        position_in(row, "complete_to"),
        bool(is_given_up),
    )


def break_columns(gap: LogBreak) -> dict[str, object]:
    """Return a break as stored in the positions table."""
    to = {f"to_{name}": value for name, value in position_columns(gap.to).items()}
    return {"reason": gap.reason, **position_columns(gap.after), **to}


def parse_breaks(value: object) -> tuple[LogBreak, ...]:
    """Return the breaks of a row of the positions table."""
    rows = value if isinstance(value, list) else []
    return tuple(LogBreak(str(row["reason"]), parse_position(row), parse_position(row, "to_")) for row in rows)


def position_columns(position: Position) -> dict[str, object]:
    """Return a position as stored in the positions table."""
    return {"timeline": position.timeline, "commit_lsn": position.commit_lsn, "ordinal": position.ordinal}


def position_in(row: Mapping[str, object], name: str) -> Position | None:
    """Return the position in a column; None if it has none, or an earlier version of Tidemark wrote it."""
    place = row.get(name)
    return parse_position(place) if isinstance(place, dict) else None


def parse_position(row: Mapping[str, object], prefix: str = "") -> Position:
    """Parse the output of `position_columns`, whose names begin with `prefix`."""
    timeline, lsn, ordinal = (row[prefix + name] for name in ("timeline", "commit_lsn", "ordinal"))
    assert isinstance(timeline, int), row
    assert isinstance(lsn, int), row
    assert isinstance(ordinal, int), row
    return Position(TimelineId(timeline), Lsn(lsn), ordinal)
