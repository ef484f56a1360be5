"""The horizon on a real state: whatever readers come, go, confirm and lapse, it never moves back."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.forged import groups
from tests.support.workloads.feeder import make_state
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.reader_holds import required_readers
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.io.state.state_views import StateMarks
from tidemark.model.position import Sequence
from tidemark.wire.outbox import encode_group

EXAMPLES = 60
STEPS_MAX = 25
NAMES = ("lake", "second", "query", "other")
REQUIRED = NAMES[:2]
VALUES = 2  # of a group: a schema and a batch
FULL = 1 << 30  # more than the outbox has space for

Step = tuple[str, str, int]


@dataclass
class SteppedState:
    """A state with readers, changed step by step."""

    store: StateStore
    outbox: OutboxReader
    lsn: int = 0

    def step(self, action: str, name: str, count: int) -> None:
        """Do one step, if it is possible now."""
        marks = self.store.marks()
        reader = marks.readers.get(name)
        if action in ("deliver", "copy", "nothing"):
            self._deliver(action, count)
        elif action == "register":
            self.outbox.register(name, is_required=name in REQUIRED)
        elif action in ("apply", "lapse"):
            with self.store.transaction(None) as transaction:
                transaction.apply_confirmations(*((1, FULL) if action == "lapse" else ()))
        elif reader is not None:
            self._change(action, name, marks, count)

    def _deliver(self, action: str, count: int) -> None:
        self.lsn += 100
        items = [] if action == "nothing" else [groups.batch(self.lsn, range(count + 1))]
        encoded = encode_group(groups.group(self.lsn, items))
        is_copy = action == "copy" and self.store.marks().delivered is not None
        with self.store.transaction(None) as transaction:
            transaction.apply_confirmations()
            transaction.deliver(replace(encoded, moves_delivered=not is_copy))

    def _change(self, action: str, name: str, marks: StateMarks, count: int) -> None:
        reader = marks.readers[name]
        if action == "drop":
            with self.store.transaction(None) as transaction:
                transaction.drop_reader(name)
        elif action == "resume" and reader.is_lapsed:
            with self.store.transaction(None) as transaction:
                transaction.resume_reader(name)
        elif action == "confirm" and not reader.is_lapsed:
            upto = Sequence(min(marks.ledger.head, reader.applied + VALUES * count))
            self.outbox.confirm(name, upto, Sequence(max(0, upto - VALUES * (count % 2))))


@contextmanager
def stepped() -> Iterator[SteppedState]:
    with tempfile.TemporaryDirectory() as root:
        folder = StateFolder(Path(root) / "state")
        make_state(folder.root)
        with StateStore.open(folder) as store, OutboxReader.open(folder) as outbox:
            yield SteppedState(store, outbox)


def steps() -> st.SearchStrategy[list[Step]]:
    actions = ("deliver", "deliver", "copy", "nothing", "register", "drop", "confirm", "confirm", "apply", "lapse")
    step = st.tuples(st.sampled_from((*actions, "resume")), st.sampled_from(NAMES), st.integers(0, 3))
    return st.lists(step, max_size=STEPS_MAX)


def required_applied(marks: StateMarks) -> Sequence | None:
    return min((reader.applied for reader in required_readers(marks.readers).values()), default=None)


@given(steps())
@example(
    [
        *[("deliver", "", 1)] * 3,
        ("register", "query", 0),
        ("confirm", "query", 2),
        ("apply", "", 0),
        ("register", "lake", 0),
        ("apply", "", 0),
        ("confirm", "lake", 1),
        ("apply", "", 0),
    ]
)
@settings(max_examples=examples(EXAMPLES))
def test_the_horizon_never_moves_back_and_passes_no_required_reader(taken: list[Step]) -> None:
    with stepped() as state:
        before = state.store.marks()
        for step in taken:
            state.step(*step)
            after = state.store.marks()
            check(before, after)
            before = after


def check(before: StateMarks, after: StateMarks) -> None:
    if before.horizon is not None:
        assert after.horizon is not None
        for name in ("position", "restart_lsn"):
            assert getattr(after.horizon.pointer, name) >= getattr(before.horizon.pointer, name)
        assert after.horizon.sequence >= before.horizon.sequence
    applied = required_applied(after)
    if applied is None:
        assert after.horizon == after.delivered
    elif after.horizon is not None:
        assert after.delivered is not None
        assert after.horizon.pointer.position <= after.delivered.pointer.position
        known = before.horizon.sequence if before.horizon is not None else 0
        assert after.horizon.sequence <= max(applied, known)
