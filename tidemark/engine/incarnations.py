"""Is a marker's writer a process of this state, or of a copy of it? One rule for all readers of markers (I21).

Two copies of a state read the same WAL, so the WAL can fence one of them. A marker contains its writer's incarnation
and epoch. The history of this state lists its incarnations, each with the epoch and the delivered position at its end.
A marker that the history covers is from this state. The writer of any other marker is a *rival*: a process on a copy
of this state, on a later version of it than was restored, or on the state of another host.

    read                                                       | writer is further     | writer is not further
    -----------------------------------------------------------+-----------------------+-----------------------
    before this process's own start marker, or without one      | OVERTAKEN             | PASSED: an old marker
    after this process's own start marker                       | OVERTAKEN             | BEHIND: answer it

Before the start marker, the writer is further if its epoch or its position is greater than this state had when it began
to deliver: the state was copied or restored from a backup, and its rival continued. After the start marker, and if this
state is confirmed as the one that delivers, the writer is further if its epoch is later, or, for equal epochs, if its
incarnation is greater. So of two rivals that read each other's markers exactly one stops. The other one answers a rival
that is behind with another marker, because the rival may not have read a marker with a later epoch than its own.

If copies start at the same moment with equal epochs, the copy whose start marker is first in the WAL continues. The
others read that marker before their own, and stop. So incarnations are not compared with first start markers: that
could stop all copies. A start marker of a confirmed state is not a first start marker.

For the same reason a process names its incarnation in its other markers only after it has read its own start marker
(`names_writer`). A named marker before that could stop a copy whose start marker comes first, and so all copies.
A marker without a name fences no process, and its pointer is valid.

A process that reads markers but does not deliver (an archiver beside its sidecar) compares epochs only. For equal
epochs the process that delivers from the same state decides: it reads the same marker.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from tidemark.model.incarnation import Extent, Incarnation, KnownIncarnation
from tidemark.model.lsn import TimelineId
from tidemark.model.position import Epoch, Position

KEPT_MAX = 200
"""Incarnations that a state keeps, in addition to those of other roles' running processes, which still write markers.

Markers of a dropped incarnation are only in old WAL, where they are PASSED.
"""
EPOCHS_SKIPPED = 1 << 20
"""Added to the epoch of a copy that is confirmed to deliver: its rival has not reached that epoch."""


class Verdict(Enum):
    """The result for a marker."""

    OWN = "it is of this state"
    PASSED = "it shows no other copy that is ahead"
    BEHIND = "its writer is on a copy of this state, and has an earlier epoch"
    OVERTAKEN = "its writer is on a copy of this state, and is ahead"


@dataclass(frozen=True, slots=True)
class Claim:
    """What a marker states about its writer; without an incarnation it claims nothing (`cdcctl`, version 1)."""

    incarnation: Incarnation | None
    epoch: Epoch
    position: Position | None
    is_first: bool = False  # the first start marker of a process whose state was not confirmed


@dataclass(frozen=True, slots=True)
class ReadingProcess:
    """The process that reads a marker."""

    incarnation: Incarnation
    now: Extent  # the current extent of its state
    began: Extent | None  # the extent of its state when it began to deliver; None: its start marker was read before
    is_confirmed: bool = False  # by an operator, or rebuilt, or promoted: rivals' positions may be ahead
    start_epoch: Epoch | None = None  # of its start marker, once that was read
    delivers: bool = True


def names_writer(*, is_start: bool, has_read_start: bool) -> bool:
    """Return whether a marker names its writer's incarnation; `has_read_start`: of its own start marker."""
    return is_start or has_read_start


def judge(claim: Claim, history: Iterable[KnownIncarnation], reader: ReadingProcess) -> Verdict:
    """Return the verdict on a marker."""
    if claim.incarnation is None:
        return Verdict.PASSED
    for known in history:
        if known.incarnation == claim.incarnation and (known.ended or reader.now).covers(claim.epoch, claim.position):
            return Verdict.OWN
    if reader.began is not None and not reader.is_confirmed:
        return Verdict.OVERTAKEN if _is_beyond(claim, reader.began) else Verdict.PASSED
    now = reader.now.epoch
    if claim.is_first and reader.began is None and claim.epoch == now == reader.start_epoch:
        return Verdict.BEHIND
    is_greater = claim.epoch == now and reader.delivers and claim.incarnation > reader.incarnation
    if now is None or claim.epoch > now or is_greater:
        return Verdict.OVERTAKEN
    return Verdict.BEHIND if reader.began is None else Verdict.PASSED


def _is_beyond(claim: Claim, began: Extent) -> bool:
    if began.epoch is not None and claim.epoch > began.epoch:
        return True
    return began.position is not None and claim.position is not None and claim.position > began.position


def replacing_epoch(timeline: TimelineId, last: Epoch | None, now_us: int) -> Epoch:
    """Return the first epoch of a restored state: greater than any epoch of the state that it replaces.

    `timeline`: the latest known one, on which the replaced state may have delivered; `last`: the latest known epoch of
    that state; `now_us`: the wall clock, so that the number grows with each restore. A state would need a million
    hand-overs in a second to exceed it.
    """
    known = last or Epoch(timeline, 0)
    return Epoch(max(timeline, known.timeline), max(known.number + EPOCHS_SKIPPED, now_us))


def with_one_more(
    history: Sequence[KnownIncarnation], own: KnownIncarnation, *, alive: Iterable[str], now: Extent
) -> tuple[KnownIncarnation, ...]:
    """Return the history with an incarnation that starts now; `alive`: roles whose process continues to run."""
    roles = frozenset(alive) - {own.role}
    known = ended(history, now, alive=roles)
    dropped = [each for each in known if each.ended is not None][: -(KEPT_MAX - 1)]
    return (*(each for each in known if each not in dropped), own)


def ended(
    history: Sequence[KnownIncarnation], now: Extent, *, alive: frozenset[str] = frozenset()
) -> tuple[KnownIncarnation, ...]:
    """Return the history with all incarnations ended except those of the roles `alive`."""
    return tuple(
        known if known.ended is not None or known.role in alive else replace(known, ended=now) for known in history
    )
