"""The subtransactions of pending transactions, compared with a list for each slot.

The interpreted kernel: compiled, its methods are C functions, which `test_small_savepoints` tests from outside.
"""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from tests.support.oracles.twins import interpreted
from tidemark.decode.transactions.pending_children import CHILDREN_MAX
from tidemark.decode.transactions.pending_rows import SLOTS_MAX

PendingChildren = interpreted("tidemark.decode.transactions.pending_children").PendingChildren


@dataclass
class ChildLists:
    """A list for each slot, the latest last."""

    lists: dict[int, list[int]] = field(default_factory=lambda: {slot: [] for slot in range(SLOTS_MAX)})

    def remove(self, slot: int, xid: int) -> None:
        """Remove the latest of that xid."""
        found = self.lists[slot]
        if xid in found:
            del found[len(found) - 1 - found[::-1].index(xid)]


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "remove", "pop"]), st.integers(0, 2), st.integers(700, 705)), max_size=60
)


@given(STEPS)
def test_pending_children_are_a_list_for_each_slot(steps: list[tuple[str, int, int]]) -> None:
    children, model = PendingChildren(), ChildLists()
    for step, slot, xid in steps:
        if step == "add":
            assert children.has_space()
            children.add(slot, xid)
            model.lists[slot].append(xid)
        elif step == "remove":
            children.remove(slot, xid)
            model.remove(slot, xid)
        else:
            assert children.pop(slot) == (model.lists[slot].pop() if model.lists[slot] else 0)
        assert [children.count(number) for number in range(3)] == [len(model.lists[number]) for number in range(3)]
    for slot in range(3):
        assert [children.pop(slot) for _ in range(len(model.lists[slot]) + 1)] == [*reversed(model.lists[slot]), 0]


def test_exactly_the_maximum_number_of_children_fits_repeatedly() -> None:
    children = PendingChildren()
    for release in ("pop", "remove"):
        for number in range(CHILDREN_MAX):
            assert children.has_space()
            children.add(number % 2, 700 + number)
        assert not children.has_space()
        for number in reversed(range(CHILDREN_MAX)):
            if release == "pop":
                assert children.pop(number % 2) == 700 + number
            else:
                children.remove(number % 2, 700 + number)
        assert (children.count(0), children.count(1)) == (0, 0)
