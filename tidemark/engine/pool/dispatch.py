"""Which piece of work a pool may start next, and which prefix of the stream is finished.

Work comes in *units* (the groups of the stream), each with its parts in stream order. A part has a *lane*: parts of one
lane run one after the other, in order; parts of different lanes run at the same time, and may overtake each other. A
part without a lane is a *barrier*: it starts when everything before it is finished, and nothing behind it starts
before its end.

What does not depend on the order can be done before: a part that waits for others may be *prepared*, the first one
first. While that lasts, it does not start.

Units finish in any order; only a contiguous prefix of finished units is *settled*, and may be confirmed.
"""

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

PART = TypeVar("PART")


class Order(Enum):
    """Which batches a pool may handle at the same time."""

    TOTAL = "total"  # one after the other, in the order of the stream
    BY_KEY = "by key"  # changes of one key in order; a change of a key waits for all before it
    NONE = "none"  # in any order


@dataclass(slots=True, eq=False)
class _DispatchedUnit:
    byte_count: int
    unfinished: int


@dataclass(slots=True, eq=False)
class Dispatched(Generic[PART]):
    """A part that may start."""

    part: PART
    lane: Hashable | None
    unit: _DispatchedUnit
    is_started: bool = False
    is_prepared: bool = False  # also while that lasts
    is_preparing: bool = False


@dataclass(slots=True, eq=False)
class _Section(Generic[PART]):
    """Parts between two barriers, or one barrier."""

    is_barrier: bool
    unfinished: int = 0
    ready: deque[Dispatched[PART]] = field(default_factory=deque)
    behind: dict[Hashable, deque[Dispatched[PART]]] = field(default_factory=dict)  # of lanes with a part that may start

    def add(self, dispatched: Dispatched[PART]) -> None:
        self.unfinished += 1
        queue = self.behind.get(dispatched.lane)
        if queue is None:
            self.behind[dispatched.lane] = deque()
            self.ready.append(dispatched)
        else:
            queue.append(dispatched)

    def finish(self, lane: Hashable | None) -> None:
        self.unfinished -= 1
        queue = self.behind[lane]
        if queue:
            self.ready.append(queue.popleft())
        else:
            del self.behind[lane]


class Dispatch(Generic[PART]):
    """The parts that wait and run, in the order of the stream. Not thread-safe: the pool has a lock."""

    def __init__(self) -> None:
        self.settled_units = 0  # of the units that were added: the length of the prefix that is finished
        self.unsettled_bytes = 0
        self._units: deque[_DispatchedUnit] = deque()
        self._sections: deque[_Section[PART]] = deque()
        self._unprepared: deque[Dispatched[PART]] = deque()  # in the order of the stream; some have started
        self._prepared_waiting = 0

    def add(self, parts: Sequence[tuple[PART, Hashable | None]], byte_count: int) -> None:
        """Add the next unit: its parts with their lanes; None for a barrier."""
        unit = _DispatchedUnit(byte_count, len(parts))
        self._units.append(unit)
        self.unsettled_bytes += byte_count
        for part, lane in parts:
            dispatched = Dispatched(part, lane, unit)
            self._section(is_barrier=lane is None).add(dispatched)
            self._unprepared.append(dispatched)
        self._settle()

    def take(self) -> Dispatched[PART] | None:
        """Return a part that may start now; None if each one waits for others, or there is none."""
        if not self._sections:
            return None
        ready = self._sections[0].ready
        for index, dispatched in enumerate(ready):
            if not dispatched.is_preparing:
                del ready[index]
                dispatched.is_started = True
                self._prepared_waiting -= dispatched.is_prepared
                self._forget_started()
                return dispatched
        return None

    def take_ahead(self, waiting_max: int) -> Dispatched[PART] | None:
        """Return the first waiting part to prepare; None if there is none, or `waiting_max` prepared ones wait."""
        if not self.ahead_count(waiting_max):
            return None
        dispatched = self._unprepared.popleft()
        dispatched.is_prepared = dispatched.is_preparing = True
        self._prepared_waiting += 1
        return dispatched

    def ahead_count(self, waiting_max: int) -> int:
        """Return how many parts `take_ahead` would return."""
        self._forget_started()
        return max(0, min(waiting_max - self._prepared_waiting, len(self._unprepared)))

    def prepared(self, dispatched: Dispatched[PART]) -> None:
        """Record that the preparation of a part has ended."""
        dispatched.is_preparing = False

    def _forget_started(self) -> None:
        while self._unprepared and self._unprepared[0].is_started:
            self._unprepared.popleft()

    @property
    def ready_count(self) -> int:
        """The number of parts that may start now."""
        return len(self._sections[0].ready) if self._sections else 0

    def finish(self, dispatched: Dispatched[PART]) -> None:
        """Record that a part is finished."""
        section = self._sections[0]
        section.finish(dispatched.lane)
        if not section.unfinished:
            self._sections.popleft()
        dispatched.unit.unfinished -= 1
        self._settle()

    @property
    def is_empty(self) -> bool:
        """Return whether no part waits or runs."""
        return not self._sections

    def _section(self, *, is_barrier: bool) -> _Section[PART]:
        if is_barrier or not self._sections or self._sections[-1].is_barrier:
            self._sections.append(_Section(is_barrier))
        return self._sections[-1]

    def _settle(self) -> None:
        while self._units and not self._units[0].unfinished:
            self.unsettled_bytes -= self._units.popleft().byte_count
            self.settled_units += 1
