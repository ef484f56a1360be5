"""The slots of a consumer's confirmations: the last complete one is read, whatever a kill left of the others."""

from hypothesis import given
from hypothesis import strategies as st

from tidemark.model.lsn import Lsn, TimelineId
from tidemark.model.position import Epoch, Position
from tidemark.wire.envelope import seal
from tidemark.wire.state.consumer_confirmation import (
    SLOT,
    SLOT_BYTES,
    SLOT_VERSION,
    SLOTS_MAX,
    ConsumerConfirmation,
    latest_confirmation,
)

NUMBERS = st.integers(0, (1 << 64) - 1)
TIMELINES = st.integers(1, (1 << 32) - 1).map(TimelineId)
POSITIONS = st.builds(Position, TIMELINES, NUMBERS.map(Lsn), NUMBERS)
CONFIRMATIONS = st.builds(
    ConsumerConfirmation,
    st.binary(min_size=2, max_size=16).map(bytes.hex),
    st.builds(Epoch, TIMELINES, NUMBERS),
    POSITIONS,
    POSITIONS,
)
HISTORIES = st.lists(CONFIRMATIONS, min_size=1, max_size=5)


def slot_of(number: int, given: ConsumerConfirmation) -> bytes:
    epoch, stored, position = given.epoch, given.stored, given.position
    places = [(each.timeline, each.commit_lsn, each.ordinal) for each in (stored, position)]
    payload = SLOT.pack(number, given.outbox_id.encode(), epoch.timeline, epoch.number, *places[0], *places[1])
    return seal(payload, SLOT_VERSION)


def file_of(history: list[ConsumerConfirmation]) -> bytearray:
    """Return the content of a file after these writes."""
    content = bytearray(SLOTS_MAX * SLOT_BYTES)
    for number, confirmation in enumerate(history, 1):
        put(content, number, slot_of(number, confirmation))
    return content


def put(content: bytearray, number: int, part: bytes) -> None:
    at = number % SLOTS_MAX * SLOT_BYTES
    content[at : at + len(part)] = part


@given(history=HISTORIES)
def test_the_last_confirmation_is_read_as_it_was_written(history: list[ConsumerConfirmation]) -> None:
    assert latest_confirmation(bytes(file_of(history))) == history[-1]


def test_an_empty_file_has_none() -> None:
    assert latest_confirmation(b"") is None
    assert latest_confirmation(bytes(SLOTS_MAX * SLOT_BYTES)) is None


@given(history=HISTORIES, following=CONFIRMATIONS, share=st.floats(0, 1))
def test_a_kill_at_any_byte_of_a_write_leaves_the_confirmation_before_it_or_the_new_one(
    history: list[ConsumerConfirmation], following: ConsumerConfirmation, share: float
) -> None:
    content, number = file_of(history), len(history) + 1
    whole, slot = file_of([*history, following]), slot_of(number, following)
    put(content, number, slot[: int(share * len(slot))])
    assert latest_confirmation(bytes(content)) == (following if content == whole else history[-1])


@given(history=HISTORIES, at=st.integers(0, SLOTS_MAX * SLOT_BYTES - 1), mask=st.integers(1, 255))
def test_a_damaged_byte_makes_no_confirmation_that_was_not_written(
    history: list[ConsumerConfirmation], at: int, mask: int
) -> None:
    content = file_of(history)
    content[at] ^= mask
    found = latest_confirmation(bytes(content))
    assert found is None or found in history[-SLOTS_MAX:]


@given(content=st.binary(max_size=2 * SLOTS_MAX * SLOT_BYTES))
def test_other_bytes_are_no_confirmation(content: bytes) -> None:
    assert latest_confirmation(content) is None


@given(given_=CONFIRMATIONS, other=CONFIRMATIONS, delivered=POSITIONS)
def test_it_continues_only_its_own_state_in_its_own_epoch_from_a_position_that_the_state_has(
    given_: ConsumerConfirmation, other: ConsumerConfirmation, delivered: Position
) -> None:
    is_between = given_.stored <= delivered < given_.position and delivered.timeline == given_.position.timeline
    assert given_.continues(given_.outbox_id, given_.epoch, delivered) == is_between
    if given_.stored < given_.position and given_.stored.timeline == given_.position.timeline:
        assert given_.continues(given_.outbox_id, given_.epoch, given_.stored)
        assert given_.continues(other.outbox_id, given_.epoch, given_.stored) == (other.outbox_id == given_.outbox_id)
        assert given_.continues(given_.outbox_id, other.epoch, given_.stored) == (other.epoch == given_.epoch)
        assert not given_.continues(given_.outbox_id, None, given_.stored)
