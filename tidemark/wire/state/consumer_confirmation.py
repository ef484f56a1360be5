"""The last confirmation of a custom consumer, as a slot of the file `tidemark.io.state.confirmed_file`.

    slot = envelope (`tidemark.wire.envelope`) of: number, outbox id, epoch, position in the state, confirmed position

The number grows with each slot that is written; a position is timeline, commit LSN and ordinal.
A slot states that the consumer has confirmed all changes between the two positions, and that the state has to record
nothing of them but the position. It is valid only for the state and the epoch that it names, so every new owner, each
command that moves the delivered pointer, and another state in the same folder make it invalid.
"""

import struct
from dataclasses import dataclass

from tidemark.model.errors import StateError
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.model.position import Epoch, Position
from tidemark.wire.envelope import seal, unseal

SLOT_BYTES = 128
SLOTS_MAX = 2  # one is complete while the other one is written
SLOT = struct.Struct("<Q33pIQIQQIQQ")
SLOT_VERSION = 1
_STORED_BYTES = len(seal(bytes(SLOT.size), SLOT_VERSION))


@dataclass(frozen=True, slots=True)
class ConsumerConfirmation:
    """A confirmation, and the state for which it is valid."""

    outbox_id: str
    epoch: Epoch
    stored: Position  # the delivered position of the state when this was written, or an earlier one
    position: Position

    def continues(self, outbox_id: str, epoch: Epoch | None, delivered: Position) -> bool:
        """Return whether the consumer of a state, with its last epoch, has confirmed more than `delivered`.

        A state that is older than `stored`, as a part of a copy may be, lacks what it recorded up to there.
        """
        is_of_state = (self.outbox_id, self.epoch) == (outbox_id, epoch)
        is_after = self.stored <= delivered < self.position and delivered.timeline == self.position.timeline
        return is_of_state and is_after


def latest_confirmation(content: bytes) -> ConsumerConfirmation | None:
    """Return the confirmation of the complete slot with the greatest number; None if there is none."""
    slots = (content[at : at + _STORED_BYTES] for at in range(0, SLOTS_MAX * SLOT_BYTES, SLOT_BYTES))
    found = [read for slot in slots if (read := _numbered(slot)) is not None]
    return max(found, key=lambda each: each[0])[1] if found else None


def _numbered(slot: bytes) -> tuple[int, ConsumerConfirmation] | None:
    """Return the number and the confirmation of a slot; None if it is empty, torn, or of another version."""
    try:
        payload = unseal("confirmed", slot, SLOT_VERSION)
    except StateError:
        return None
    if len(payload) != SLOT.size:
        return None
    number, outbox_id, timeline, epoch, *positions = SLOT.unpack(payload)
    state = outbox_id.decode("ascii", "replace"), Epoch(TimelineId(timeline), epoch)
    return number, ConsumerConfirmation(*state, _position(*positions[:3]), _position(*positions[3:]))


def _position(timeline: int, commit_lsn: int, ordinal: int) -> Position:
    return Position(TimelineId(timeline), Lsn(commit_lsn), ordinal)
