"""The state of a follower after each group: its position, and its start by the markers that it has read."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forged import groups
from tests.support.servers.histories import empty_history
from tidemark.engine.progress import Progress
from tidemark.engine.selection import Selection
from tidemark.io.host.log_output import get_log
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import Lsn, SystemIdentifier, TimelineId
from tidemark.model.mode import Stage
from tidemark.model.position import NO_SEQUENCE, Epoch, Pointer, Position, Sequence
from tidemark.runtime.delivery.following import DelivererMarker, FollowTarget
from tidemark.runtime.first_copy.selected_tables import SelectedTables
from tidemark.wire.marker import Instance, Marker, MarkerKind
from tidemark.wire.state.process_log import Owner
from tidemark.wire.state.state_keys import DELIVERED, FOLLOWED, STAGE
from tidemark.wire.state.values import Followed, FollowedDeliverer, Identity, Watermark

OWNER = Owner("sidecar", "host", "boot", 1, 1)
IDENTITY = Identity("main", SystemIdentifier(77), "0a0b", 15, 1 << 20, 4 << 20)
FIRST, NEXT = TimelineId(1), TimelineId(2)
FLOOR = 1000
UNMARKED_BYTES_MAX = 1 << 20


def pointer(lsn: int, restart_lsn: int = 0, timeline: TimelineId = FIRST) -> Pointer:
    return Pointer(Position(timeline, Lsn(lsn), 0), Lsn(restart_lsn or lsn))


def deliverer_marker(
    lsn: int, confirmed: Pointer, *, epoch: int = 1, kind: MarkerKind = MarkerKind.CONFIRM, head: int = 9
) -> DelivererMarker:
    instance = Instance(IDENTITY.system_identifier, IDENTITY.capture)
    marker = Marker(kind, instance, Epoch(FIRST, epoch), Sequence(head), confirmed)
    return DelivererMarker(marker, confirmed, Lsn(lsn))


class FollowerSetup:
    """A follower's target over a real state, and the last marker."""

    def __init__(self, folder: StateFolder) -> None:
        self.store = StateStore.create(folder, IDENTITY)
        begin = pointer(500, 400)
        with self.store.transaction(None) as transaction:
            transaction.put(STAGE, Stage.FOLLOWER)
            transaction.put(DELIVERED, Watermark(begin, NO_SEQUENCE))
            transaction.put(FOLLOWED, Followed(begin, pointer(FLOOR, 600), has_start=False))
        self.newest: DelivererMarker | None = None
        selected_tables = SelectedTables(Selection(), copying=False, log=get_log("test"))
        epoch = self.store.begin_epoch(OWNER)
        self._target = FollowTarget(
            self.store,
            epoch,
            lambda: self.newest,
            unmarked_bytes_max=UNMARKED_BYTES_MAX,
            history=empty_history(self.store),
            records=[selected_tables],
            progress=Progress(),
            metrics=Metrics("main"),
            log=get_log("test"),
        )

    def pass_by(self, commit_lsn: int) -> Followed:
        """Process a group; return the resulting state."""
        self._target.deliver(groups.group(commit_lsn, []))
        followed = self.store.view().followed
        assert followed is not None
        return followed

    @property
    def begin(self) -> Pointer:
        """The start after a promotion."""
        delivered = self.store.view().delivered
        assert delivered is not None
        return delivered.pointer


@pytest.fixture
def following(tmp_path: Path) -> Iterator[FollowerSetup]:
    made = FollowerSetup(StateFolder(tmp_path / "state"))
    with made.store:
        yield made


def test_a_marker_counts_once_all_before_it_is_followed(following: FollowerSetup) -> None:
    following.newest = deliverer_marker(3000, pointer(2000, 1500))
    assert not following.pass_by(2500).has_start
    assert following.pass_by(3000).leader == FollowedDeliverer(Epoch(FIRST, 1), Lsn(3000), Sequence(9))
    assert following.begin == pointer(2000, 1500)


def test_a_pointer_confirmed_before_the_state_was_complete_is_not_a_start(following: FollowerSetup) -> None:
    following.newest = deliverer_marker(1100, pointer(FLOOR - 8, 300))
    assert not following.pass_by(1200).has_start
    following.newest = deliverer_marker(1300, pointer(FLOOR, 300))
    assert following.pass_by(1400).has_start
    assert following.begin == pointer(FLOOR, 600), "from where the catalogs are known"


def test_late_writes_of_a_replaced_deliverer_move_nothing_back(following: FollowerSetup) -> None:
    following.newest = deliverer_marker(2000, pointer(1900), epoch=3)
    following.pass_by(2100)
    following.newest = deliverer_marker(2500, pointer(1800), epoch=2)
    assert following.pass_by(2600).has_start
    assert following.begin == pointer(1900)


def test_a_deliverer_whose_state_was_rebuilt_is_heard(following: FollowerSetup) -> None:
    following.newest = deliverer_marker(2000, pointer(1900), epoch=3)
    following.pass_by(2100)
    following.newest = deliverer_marker(2500, pointer(2400), epoch=1)
    assert following.pass_by(2600).leader == FollowedDeliverer(Epoch(FIRST, 1), Lsn(2500), Sequence(9))
    assert following.begin == pointer(2400)


def test_only_confirm_markers_describe_the_outbox(following: FollowerSetup) -> None:
    following.newest = deliverer_marker(2000, pointer(1900), head=50)
    following.pass_by(2100)
    following.newest = deliverer_marker(2500, pointer(2400), kind=MarkerKind.TRY_START, head=700)
    assert following.pass_by(2600).leader == FollowedDeliverer(Epoch(FIRST, 1), Lsn(2500), Sequence(50))
    assert following.begin == pointer(2400)


def test_a_start_that_is_too_old_is_dropped_until_another_marker_is_read(following: FollowerSetup) -> None:
    following.newest = deliverer_marker(2000, pointer(1900))
    assert following.pass_by(2100).has_start
    late = 1900 + UNMARKED_BYTES_MAX
    assert following.pass_by(late).has_start
    assert not following.pass_by(late + 100).has_start
    following.newest = deliverer_marker(late + 200, pointer(late))
    assert not following.pass_by(late + 200).has_start, "its position is before the kept ones"
    following.newest = deliverer_marker(late + 300, pointer(late + 150))
    assert following.pass_by(late + 300).has_start


def test_the_epoch_behind_a_promotion_is_above_all_that_were_read_and_never_decreases(following: FollowerSetup) -> None:
    following.newest = deliverer_marker(2000, pointer(1900), epoch=40)
    following.pass_by(2100)
    with following.store.transaction(None) as transaction:
        followed = transaction.followed()
        assert followed is not None
        transaction.put(
            FOLLOWED, Followed(pointer(3000, timeline=NEXT), followed.floor, has_start=True, leader=followed.leader)
        )
        assert transaction.begin_epoch(OWNER) == Epoch(NEXT, 41)
        transaction.drop(FOLLOWED)
        assert transaction.begin_epoch(OWNER) == Epoch(NEXT, 42)
