"""Copies of a state that read one WAL: no state is fenced by itself, and of two that run exactly one continues."""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.engine.incarnations import (
    EPOCHS_SKIPPED,
    KEPT_MAX,
    Claim,
    ReadingProcess,
    Verdict,
    ended,
    judge,
    names_writer,
    replacing_epoch,
    with_one_more,
)
from tidemark.model.incarnation import Extent, Incarnation, KnownIncarnation
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.model.position import Epoch, Position

FIRST = TimelineId(1)
ROUNDS = 60
WalRecord = Claim | None  # a marker, or a commit


def position(index: int) -> Position:
    return Position(FIRST, Lsn(index), 0)


@dataclass
class SimulatedProcess:
    """A process that delivers."""

    incarnation: Incarnation
    began: Extent
    next: int
    flush: int  # the end of WAL at its start
    start: int | None = None  # LSN of its own start marker, once read
    start_epoch: Epoch | None = None
    is_written: bool = False
    wants_to_answer: bool = False
    answered: set[Incarnation] = field(default_factory=set)


@dataclass
class FolderState:
    """The durable content of a folder, and the process that runs on it."""

    epoch: int = 1
    delivered: int = -1
    history: tuple[KnownIncarnation, ...] = ()
    is_confirmed: bool = False
    overtaken: Claim | None = None
    process: SimulatedProcess | None = None
    watched: int = 0  # up to which record its passive archiver has read

    @property
    def extent(self) -> Extent:
        """Its position."""
        return Extent(Epoch(FIRST, self.epoch), position(self.delivered + 1))


@dataclass
class StateCopies:
    """One WAL, and states that are copies of one."""

    names: list[int]  # the order of the incarnations' names
    wal: list[WalRecord] = field(default_factory=list)
    states: list[FolderState] = field(default_factory=lambda: [FolderState()])
    _born: "count[int]" = field(default_factory=count)

    def start(self, state: FolderState, *, back: int = 0, moved: bool = False) -> None:
        """Start a process that reads `back` records again; `moved`: at the operator's request."""
        if moved and state.process is None:
            reached = max(state.epoch, state.overtaken.epoch.number if state.overtaken is not None else 0)
            state.history, state.is_confirmed = ended(state.history, state.extent), True
            state.epoch, state.overtaken = reached + EPOCHS_SKIPPED, None
        if state.process is not None or state.overtaken is not None:
            return
        number = next(self._born)
        name = Incarnation(f"{self.names[number % len(self.names)]:04}-{number:04}")
        began = state.extent
        state.history = with_one_more(state.history, KnownIncarnation(name, "sidecar"), alive=(), now=began)
        state.epoch += 1
        state.process = SimulatedProcess(name, began, max(0, state.delivered + 1 - back), len(self.wal))

    def mark(self, state: FolderState, *, is_start: bool = False, is_first: bool = False) -> None:
        """Write a marker of the confirmed position; `is_start`: as a start marker."""
        if state.process is not None:
            epoch, reached = Epoch(FIRST, state.epoch), position(state.delivered + 1)
            is_named = names_writer(is_start=is_start, has_read_start=state.process.start is not None)
            self.wal.append(Claim(state.process.incarnation if is_named else None, epoch, reached, is_first))

    def read(self, state: FolderState, times: int) -> None:
        """Read on, deliver commits, judge markers; write the start marker when it is due."""
        for _ in range(times):
            process = state.process
            if process is None or process.next >= len(self.wal):
                break
            at, record = process.next, self.wal[process.next]
            process.next += 1
            if record is not None:
                self._meet(state, process, at, record)
            elif at > state.delivered:
                state.delivered = at
        process = state.process
        if process is None or (process.is_written and not process.wants_to_answer):
            return
        if process.is_written or state.is_confirmed or process.next >= process.flush:
            is_first = not process.is_written and not process.wants_to_answer and not state.is_confirmed
            process.is_written, process.wants_to_answer = True, False
            self.mark(state, is_start=True, is_first=is_first)

    def _meet(self, state: FolderState, process: SimulatedProcess, at: int, claim: Claim) -> None:
        if claim.incarnation == process.incarnation and process.is_written and process.start is None:
            process.start, state.is_confirmed, process.start_epoch = at, False, claim.epoch
            return
        began = None if process.start is not None and at > process.start else process.began
        reader = ReadingProcess(process.incarnation, state.extent, began, state.is_confirmed, process.start_epoch)
        match judge(claim, state.history, reader):
            case Verdict.OVERTAKEN:
                assert state.delivered < at, "it has delivered what commits behind the marker that fences it"
                state.overtaken, state.process = claim, None
            case Verdict.BEHIND if claim.incarnation is not None and claim.incarnation not in process.answered:
                process.answered.add(claim.incarnation)
                process.wants_to_answer = True

    def watch(self, state: FolderState, times: int) -> None:
        """Let the state's passive archiver read on."""
        archiver = Incarnation(f"{self.names[-1]:04}-archiver-{self.states.index(state)}")
        until = min(state.watched + times, len(self.wal))
        for record in self.wal[state.watched : until]:
            if record is not None and state.overtaken is None:
                reader = ReadingProcess(archiver, state.extent, None, state.is_confirmed, delivers=False)
                if judge(record, state.history, reader) is Verdict.OVERTAKEN:
                    state.overtaken, state.process = record, None
        state.watched = until

    def settle(self) -> None:
        """Let all processes read everything, and write the markers that are due."""
        for _ in range(ROUNDS):
            for state in self.states:
                self.read(state, len(self.wal))
                self.watch(state, len(self.wal))
                assert len(self.wal) < 10_000, "markers answer markers without end"

    @property
    def running(self) -> list[FolderState]:
        """The states with a running process."""
        return [state for state in self.states if state.process is not None]


NAMES = st.lists(st.integers(0, 9), min_size=1, max_size=8)
STEPS = st.lists(
    st.tuples(st.sampled_from(["commit", "mark", "read", "watch", "start", "kill", "epoch"]), st.integers(0, 5)),
    max_size=40,
)
MOVES = st.lists(
    st.tuples(
        st.sampled_from(["commit", "mark", "read", "watch", "start", "kill", "epoch", "copy", "moved"]),
        st.integers(0, 2),
        st.integers(0, 5),
    ),
    max_size=40,
)


def step(world: StateCopies, state: FolderState, what: str, size: int) -> None:
    match what:
        case "commit":
            world.wal += [None] * (size + 1)
        case "mark":
            world.mark(state)
        case "read":
            world.read(state, 3 * size + 1)
        case "watch":
            world.watch(state, 3 * size + 1)
        case "start" | "moved":
            world.start(state, back=3 * size, moved=what == "moved")
        case "kill":
            state.process = None
        case "epoch" if state.process is not None:  # a hand-over to the archiver and back
            state.epoch += 1
        case "copy" if len(world.states) < 3:
            world.states.append(replace(deepcopy(state), process=None))
        case _:
            pass


@pytest.mark.feature("I21")
@given(names=NAMES, steps=STEPS)
def test_a_state_is_never_fenced_by_itself(names: list[int], steps: list[tuple[str, int]]) -> None:
    world = StateCopies(names)
    (state,) = world.states
    for what, size in steps:
        step(world, state, what, size)
        assert state.overtaken is None
    world.start(state, back=len(world.wal))
    world.settle()
    assert state.overtaken is None


@pytest.mark.feature("I21")
@settings(max_examples=300)
@given(names=NAMES, steps=MOVES)
def test_of_copies_that_run_at_most_one_continues(names: list[int], steps: list[tuple[str, int, int]]) -> None:
    world = StateCopies(names)
    for what, which, size in steps:
        step(world, world.states[which % len(world.states)], what, size)
    world.settle()
    assert len(world.running) <= 1


@pytest.mark.feature("I21")
@settings(max_examples=300)
@given(names=NAMES, before=STEPS, after=MOVES)
def test_of_two_copies_of_which_the_second_is_confirmed_exactly_one_continues(
    names: list[int], before: list[tuple[str, int]], after: list[tuple[str, int, int]]
) -> None:
    world = StateCopies(names)
    (state,) = world.states
    for what, size in before:
        step(world, state, what, size)
    world.start(state)
    step(world, state, "copy", 0)
    world.start(world.states[1], moved=True)
    for what, which, size in after:
        if what in ("commit", "mark", "read", "epoch"):
            step(world, world.states[which % 2], what, size)
    world.settle()
    assert len(world.running) == 1
    assert world.running == [world.states[1]] or world.states[1].overtaken is not None


@pytest.mark.feature("I21")
@settings(max_examples=300)
@given(
    names=NAMES,
    before=STEPS,
    count=st.integers(2, 3),
    after=st.lists(
        st.tuples(st.sampled_from(["read", "mark", "watch", "commit"]), st.integers(0, 2), st.integers(0, 9))
    ),
)
def test_of_copies_that_start_at_one_moment_exactly_one_continues(
    names: list[int], before: list[tuple[str, int]], count: int, after: list[tuple[str, int, int]]
) -> None:
    world = StateCopies(names)
    (state,) = world.states
    for what, size in before:
        step(world, state, what, size)
    state.process = None
    while len(world.states) < count:
        step(world, state, "copy", 0)
    for each in world.states:
        each.watched = max(0, each.delivered + 1)  # the start of an archiver that begins now
        world.start(each)
    for what, which, size in after:
        step(world, world.states[which % count], what, size)
    world.settle()
    assert len(world.running) == 1


@pytest.mark.feature("I21")
@given(names=NAMES, behind=st.integers(1, 5), back=st.integers(0, 20))
def test_a_state_that_is_older_than_the_markers_in_wal_stops_before_it_writes_a_marker(
    names: list[int], behind: int, back: int
) -> None:
    world = StateCopies(names)
    (state,) = world.states
    step(world, state, "commit", 3)
    world.start(state)
    world.settle()
    step(world, state, "copy", 0)
    step(world, state, "commit", behind)
    world.read(state, len(world.wal))
    world.mark(state)
    restored, length = world.states[1], len(world.wal)
    world.start(restored, back=back)
    world.read(restored, length)
    assert restored.overtaken is not None
    assert len(world.wal) == length
    assert restored.delivered <= state.delivered
    world.settle()
    assert world.running == [state]


@pytest.mark.feature("I21")
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("names", [[1, 2], [2, 1]])
def test_a_rival_whose_epoch_is_not_later_gets_a_marker_and_exactly_one_continues(
    names: list[int], epochs: int
) -> None:
    world = StateCopies(names)
    (state,) = world.states
    world.start(state)
    world.settle()
    step(world, state, "copy", 0)
    for _ in range(epochs):
        step(world, state, "epoch", 0)  # without a marker: so far both are the deliverer by their own records
    world.start(world.states[1])
    world.read(world.states[1], len(world.wal))
    world.mark(state)  # before it has read the other one's start marker
    world.settle()
    assert len(world.running) == 1
    assert epochs == 1 or world.running == [state]


def test_the_history_is_bounded_and_its_dropped_entries_fence_no_process() -> None:
    world = StateCopies([1])
    (state,) = world.states
    for _ in range(KEPT_MAX + 10):
        world.wal.append(None)
        world.start(state)
        world.settle()
        state.process = None
    assert len(state.history) == KEPT_MAX
    world.start(state, back=len(world.wal))
    world.settle()
    assert state.process is not None


@pytest.mark.feature("I21")
def test_endless_restarts_of_a_process_never_drop_the_one_that_runs_beside_it() -> None:
    sidecar = KnownIncarnation(Incarnation("z"), "sidecar")
    now = Extent(Epoch(FIRST, 7), position(500))
    history = with_one_more((), sidecar, alive=(), now=now)
    for number in range(KEPT_MAX + 10):
        born = KnownIncarnation(Incarnation(f"a{number}"), "archiver")
        history = with_one_more(history, born, alive=("sidecar", "archiver"), now=now)
    assert len(history) <= KEPT_MAX + 1
    archiver = ReadingProcess(history[-1].incarnation, now, None)
    assert judge(Claim(sidecar.incarnation, Epoch(FIRST, 7), position(500)), history, archiver) is Verdict.OWN


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_a_marker_without_an_incarnation_fences_no_process(*, is_confirmed: bool) -> None:
    claim = Claim(None, Epoch(FIRST, 99), position(99))
    for began in (None, Extent(Epoch(FIRST, 1), position(0))):
        reader = ReadingProcess(Incarnation("a"), Extent(Epoch(FIRST, 2), position(1)), began, is_confirmed)
        assert judge(claim, (), reader) is Verdict.PASSED


def test_a_deliverer_of_an_older_timeline_fences_no_promoted_one_and_is_fenced_by_it() -> None:
    old = Claim(Incarnation("z"), Epoch(FIRST, 7), position(500))
    new = Claim(Incarnation("a"), Epoch(TimelineId(2), 8), Position(TimelineId(2), Lsn(400), 0))
    promoted = ReadingProcess(Incarnation("a"), Extent(new.epoch, new.position), None)
    left = ReadingProcess(Incarnation("z"), Extent(old.epoch, old.position), None)
    assert judge(old, (KnownIncarnation(Incarnation("a"), "sidecar"),), promoted) is Verdict.BEHIND
    assert judge(new, (KnownIncarnation(Incarnation("z"), "sidecar"),), left) is Verdict.OVERTAKEN


OWN, LESS, GREATER = Incarnation("m"), Incarnation("a"), Incarnation("z")
NOW = Extent(Epoch(FIRST, 7), position(500))
BEFORE = Extent(Epoch(FIRST, 3), position(300))


@pytest.mark.feature("I21")
@pytest.mark.parametrize(
    ("claimed", "number", "verdict"),
    [
        (GREATER, 8, Verdict.OVERTAKEN),
        (LESS, 8, Verdict.OVERTAKEN),
        (GREATER, 7, Verdict.OVERTAKEN),
        (LESS, 7, Verdict.PASSED),
        (GREATER, 6, Verdict.PASSED),
    ],
)
def test_a_confirmed_deliverer_is_fenced_by_a_later_epoch_alone_and_answers_nothing_before_its_start_marker(
    claimed: Incarnation, number: int, verdict: Verdict
) -> None:
    reader = ReadingProcess(OWN, NOW, BEFORE, is_confirmed=True)
    assert judge(Claim(claimed, Epoch(FIRST, number), position(900)), (), reader) is verdict
    behind = replace(reader, began=None)
    expected = Verdict.BEHIND if verdict is Verdict.PASSED else verdict
    assert judge(Claim(claimed, Epoch(FIRST, number), position(900)), (), behind) is expected


def test_a_state_without_an_epoch_is_ahead_of_no_other() -> None:
    reader = ReadingProcess(GREATER, Extent(None, None), None)
    assert judge(Claim(LESS, Epoch(FIRST, 1), None), (), reader) is Verdict.OVERTAKEN


def test_a_process_is_not_fenced_by_its_own_incarnation() -> None:
    own = Claim(OWN, Epoch(FIRST, 7), position(501))  # beyond what the state has
    assert judge(own, (KnownIncarnation(OWN, "sidecar"),), ReadingProcess(OWN, NOW, None)) is Verdict.BEHIND


@pytest.mark.feature("I21")
@pytest.mark.parametrize(
    ("number", "at", "began", "verdict"),
    [
        (3, 300, BEFORE, Verdict.PASSED),
        (4, 300, BEFORE, Verdict.OVERTAKEN),
        (3, 301, BEFORE, Verdict.OVERTAKEN),
        (3, None, BEFORE, Verdict.PASSED),
        (4, None, BEFORE, Verdict.OVERTAKEN),
        (4, 300, Extent(None, BEFORE.position), Verdict.PASSED),
        (4, 301, Extent(None, BEFORE.position), Verdict.OVERTAKEN),
        (3, 301, Extent(BEFORE.epoch, None), Verdict.PASSED),
    ],
)
def test_before_its_start_marker_a_state_is_overtaken_by_what_is_beyond_it_in_epoch_or_position(
    number: int, at: int | None, began: Extent, verdict: Verdict
) -> None:
    claim = Claim(GREATER, Epoch(FIRST, number), None if at is None else position(at))
    assert judge(claim, (), ReadingProcess(OWN, NOW, began)) is verdict


@pytest.mark.feature("I21")
@given(
    steps=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 1000), st.booleans()), min_size=1, max_size=8),
    start_us=st.integers(10**15, 2 * 10**15),
)
def test_the_epochs_of_a_restored_state_are_above_those_of_all_states_that_it_replaces(
    steps: list[tuple[int, int, bool]], start_us: int
) -> None:
    """Each is restored a second after the last one, on the latest timeline, which it may not know."""
    now_us, timeline, last = start_us, FIRST, Epoch(FIRST, 70)
    for promotions, hand_overs, is_known in steps:
        now_us, timeline = now_us + 10**6, TimelineId(timeline + promotions - 1)
        restored = replacing_epoch(timeline, last if is_known else None, now_us)
        assert restored > last
        last = Epoch(timeline, restored.number + hand_overs)


@pytest.mark.feature("I21")
@given(st.integers(1, 9), st.integers(0, 1 << 70), st.integers(0, 1 << 62))
def test_the_epochs_of_a_restored_state_are_above_all_known_ones_even_if_the_clock_was_set_back(
    timeline: int, number: int, now_us: int
) -> None:
    known = Epoch(TimelineId(timeline), number)
    assert replacing_epoch(FIRST, known, now_us) >= replace(known, number=number + EPOCHS_SKIPPED)


def test_an_incarnation_ends_once_and_a_running_one_of_a_role_that_continues_does_not() -> None:
    history = (
        KnownIncarnation(LESS, "sidecar", BEFORE),
        KnownIncarnation(OWN, "sidecar"),
        KnownIncarnation(GREATER, "archiver"),
    )
    assert [known.ended for known in ended(history, NOW)] == [BEFORE, NOW, NOW]
    assert [known.ended for known in ended(history, NOW, alive=frozenset({"archiver"}))] == [BEFORE, NOW, None]
