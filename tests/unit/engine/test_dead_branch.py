"""The effect of a node's timeline history on delivered changes, and where decoding may begin again."""

import pytest

from tidemark.engine.dead_branch import DeadBranch, OtherBranch, find_dead_branch, happened, precedes, restart_before
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.model.position import Pointer, Position
from tidemark.wal.segments import parse_history

FORK = Lsn(0x3000)
LATER_FORK = Lsn(0x9000)
NODE = parse_history("1\t0/3000\tpromoted\n3\t0/9000\tpromoted\n", 4)


def at(timeline: int, lsn: int, ordinal: int = 0) -> Position:
    return Position(TimelineId(timeline), Lsn(lsn), ordinal)


def pointer(timeline: int, lsn: int, restart_lsn: int) -> Pointer:
    return Pointer(at(timeline, lsn), Lsn(restart_lsn))


@pytest.mark.parametrize("delivered", [at(1, FORK - 1, 9), at(3, LATER_FORK - 8), at(4, LATER_FORK), at(4, 1 << 40)])
def test_changes_delivered_before_their_timeline_was_left_are_not_a_dead_branch(delivered: Position) -> None:
    assert find_dead_branch(NODE, delivered) is None


@pytest.mark.parametrize(
    ("delivered", "fork_lsn", "next_timeline"),
    [(at(1, FORK), FORK, 3), (at(1, 1 << 40, 3), FORK, 3), (at(3, LATER_FORK), LATER_FORK, 4)],
)
def test_transactions_that_commit_at_or_after_the_fork_are_dead(
    delivered: Position, fork_lsn: Lsn, next_timeline: int
) -> None:
    found = find_dead_branch(NODE, delivered)
    assert found == DeadBranch(delivered.timeline, fork_lsn, delivered, TimelineId(next_timeline))


@pytest.mark.parametrize("timeline", [2, 5])
def test_a_timeline_that_did_not_lead_to_the_nodes_is_refused_by_name(timeline: int) -> None:
    with pytest.raises(OtherBranch, match=f"does not descend from timeline {timeline}"):
        find_dead_branch(NODE, at(timeline, FORK))


def test_a_position_is_in_the_nodes_history_if_the_node_was_on_its_timeline_at_that_lsn() -> None:
    for past in (at(1, FORK - 1, 9), at(3, LATER_FORK - 1), at(4, 1 << 40)):
        assert happened(NODE, past), past
    for other in (at(1, FORK), at(2, FORK - 1), at(3, LATER_FORK), at(5, FORK)):
        assert not happened(NODE, other), other


def test_wal_that_the_node_wrote_after_a_branch_does_not_precede_it() -> None:
    first_branch = DeadBranch(TimelineId(1), FORK, at(1, 0x4000), TimelineId(3))
    assert precedes(NODE, at(1, FORK - 1), first_branch)
    assert not precedes(NODE, at(3, FORK), first_branch)
    assert not precedes(NODE, at(4, LATER_FORK), first_branch)


def restarted(pointers: list[Pointer], bases: list[tuple[int, int]]) -> Lsn | None:
    branch = DeadBranch(TimelineId(3), LATER_FORK, at(3, 0xA000), TimelineId(4))
    return restart_before(NODE, branch, pointers, [(Lsn(lsn), Lsn(restart)) for lsn, restart in bases])


def test_decoding_begins_again_at_the_latest_position_before_the_fork() -> None:
    assert restarted([], []) is None
    assert restarted([], [(0x1000, 0x1000), (0x5000, 0x4F00)]) == 0x4F00
    assert restarted([pointer(3, 0x8000, 0x7000)], [(0x1000, 0x1000), (0x5000, 0x4F00)]) == 0x7000
    several = [pointer(3, 0x6000, 0x5800), pointer(3, 0x8000, 0x7000), pointer(1, 0x1000, 0x0F00)]
    assert restarted(several, [(0x1000, 0x1000), (0x5000, 0x4F00)]) == 0x7000
    assert restarted([pointer(3, 0x8000, 0x2000)], [(0x1000, 0x1000), (0x5000, 0x4F00)]) == 0x4F00


def test_a_pointer_after_the_fork_or_of_an_earlier_dead_branch_is_ignored() -> None:
    bases = [(0x1000, 0x1000)]
    assert restarted([pointer(3, LATER_FORK, 0x8F00)], bases) == 0x1000
    assert restarted([pointer(1, 0x8800, 0x8700), pointer(3, FORK - 1, 0x2000)], bases) == 0x2000
    assert restarted([pointer(1, 0x8800, 0x8700)], bases) == 0x1000
    assert restarted([pointer(2, FORK, 0x2F00)], bases) == 0x1000


def test_there_is_no_restart_below_the_oldest_base() -> None:
    assert restarted([], [(0x1000, 0x0F00)]) is None
    assert restarted([pointer(3, 0x8000, 0x7000)], [(0x1000, 0x0F00)]) == 0x7000
