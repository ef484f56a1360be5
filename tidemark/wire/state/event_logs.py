"""Logs for people: changes of the stage, losses and rewinds."""

from dataclasses import dataclass

from tidemark.model.lsn import Lsn, TimelineId
from tidemark.model.mode import Stage
from tidemark.model.position import Epoch, Position

EVENTS_KEPT = 100  # of each log: switches, losses, rewinds


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of the stage, for people."""

    at_us: int  # wall clock
    before: Stage
    after: Stage
    reason: str
    epoch: Epoch | None
    delivered: str  # the position at that time


@dataclass(frozen=True, slots=True)
class SwitchLog:
    """The latest switches, oldest first."""

    kept: tuple[Switch, ...] = ()
    count: int = 0  # total

    def with_one_more(self, switch: Switch) -> "SwitchLog":
        """Return the log with another switch; the oldest is dropped above the limit."""
        return SwitchLog((*self.kept, switch)[-EVENTS_KEPT:], self.count + 1)


@dataclass(frozen=True, slots=True)
class Loss:
    """Changes that an operator gave up (`archive repair`, `rewind`): commits after `after` were not delivered."""

    at_us: int  # wall clock
    after: Position  # the last position that was delivered before it
    hole_start_lsn: Lsn  # the start of the missing or damaged WAL
    hole_end_lsn: Lsn
    resumed_timeline: TimelineId
    resumed_lsn: Lsn  # decoding continues here, from a new seed
    tables: int  # to be copied again
    damage: str = ""  # the damage in the WAL, and its file; empty: the WAL is missing


@dataclass(frozen=True, slots=True)
class LossLog:
    """The latest losses, oldest first."""

    kept: tuple[Loss, ...] = ()
    count: int = 0  # total

    def with_one_more(self, loss: Loss) -> "LossLog":
        """Return the log with another loss; the oldest is dropped above the limit."""
        return LossLog((*self.kept, loss)[-EVENTS_KEPT:], self.count + 1)


@dataclass(frozen=True, slots=True)
class Rewind:
    """A dead branch that had been delivered (`cdcctl rewind`): [fork_lsn, delivered] of its timeline."""

    at_us: int  # wall clock
    timeline: TimelineId  # of the dead branch
    fork_lsn: Lsn  # where the node left it
    delivered: Position  # the last position of it that was delivered
    resumed_timeline: TimelineId
    resumed_lsn: Lsn  # commits from here on, on that timeline, are delivered
    tables: int  # to be copied again


@dataclass(frozen=True, slots=True)
class RewindLog:
    """The latest rewinds, oldest first."""

    kept: tuple[Rewind, ...] = ()
    count: int = 0  # total

    def with_one_more(self, rewind: Rewind) -> "RewindLog":
        """Return the log with another rewind; the oldest is dropped above the limit."""
        return RewindLog((*self.kept, rewind)[-EVENTS_KEPT:], self.count + 1)


@dataclass(frozen=True, slots=True)
class Notified:
    """How many losses and rewinds were reported to a custom consumer."""

    losses: int = 0
    rewinds: int = 0


def unnotified_events(losses: LossLog, rewinds: RewindLog, notified: Notified) -> tuple[Loss | Rewind, ...]:
    """Return the events that were not reported to a consumer, oldest first; a rewind before the loss that it caused.

    Of more than `EVENTS_KEPT`, only the latest are known. A log that was damaged and forgotten begins again.
    """
    events = [
        *_behind(rewinds.kept, rewinds.count, notified.rewinds),
        *_behind(losses.kept, losses.count, notified.losses),
    ]
    return tuple(sorted(events, key=lambda event: event.at_us))


def _behind(kept: "tuple[Loss, ...] | tuple[Rewind, ...]", count: int, notified: int) -> "list[Loss | Rewind]":
    new = count - notified if notified <= count else count
    return [*kept[max(0, len(kept) - new) :]]
