"""The last confirmation of a custom consumer, in a small mapped file beside LMDB.

The transaction that records a confirmation takes as long as the disk, and comes later (`deliver.confirm_ms`). This file
has the confirmation at once, without a system call. It is in the memory of the kernel, so it survives the kill of the
process, but not a crash of the host. The next owner of the state continues after it
(`StateTransaction.take_confirmation`). The slots are written in turn (`tidemark.wire.state.consumer_confirmation`): a
kill in the middle of a write leaves the confirmation before it.
"""

import mmap
import os
from typing import NamedTuple, Self

from tidemark.io.host.disk import writing
from tidemark.io.host.logs import Log
from tidemark.io.state.state_folder import StateFolder
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

TAKEN = "delivery continues after what the consumer of a killed process has confirmed"
_FILE_BYTES = SLOTS_MAX * SLOT_BYTES


class TakenConfirmation(NamedTuple):
    """What a consumer has confirmed beyond what its process had recorded when it was killed."""

    delivered: Position  # as recorded
    confirmed: Position

    def report(self, log: Log) -> None:
        """Log both positions, once the transaction that moves the delivered one is durable."""
        log.info(TAKEN, delivered=str(self.delivered), confirmed=str(self.confirmed))


class ConfirmedFile:
    """The file of the process that delivers under an epoch; for one thread."""

    def __init__(self, descriptor: int, outbox_id: str, epoch: Epoch) -> None:
        self._map = mmap.mmap(descriptor, _FILE_BYTES)
        self._outbox_id = outbox_id.encode()
        self._epoch = epoch
        self._number = 0

    @classmethod
    def create(cls, folder: StateFolder, outbox_id: str, epoch: Epoch) -> Self:
        """Create an empty file in place of the former one; `outbox_id`: of the state, as it is now.

        NB: a new file, because the owner of the last epoch may still write to the one that it has mapped.
        """
        with writing(folder.confirmed):
            folder.confirmed.unlink(missing_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(folder.confirmed, flags, folder.file_mode)
            try:
                os.posix_fallocate(descriptor, 0, _FILE_BYTES)  # NB: else a write on a full disk is SIGBUS
                return cls(descriptor, outbox_id, epoch)
            finally:
                os.close(descriptor)

    def write(self, stored: Position, position: Position) -> None:
        """Record that the consumer confirmed all up to `position`; the state has delivered `stored`."""
        self._number = number = self._number + 1
        epoch = self._epoch
        payload = SLOT.pack(
            number,
            self._outbox_id,
            epoch.timeline,
            epoch.number,
            stored.timeline,
            stored.commit_lsn,
            stored.ordinal,
            position.timeline,
            position.commit_lsn,
            position.ordinal,
        )
        slot = seal(payload, SLOT_VERSION)
        at = number % SLOTS_MAX * SLOT_BYTES
        self._map[at : at + len(slot)] = slot

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()


def read_confirmation(folder: StateFolder) -> ConsumerConfirmation | None:
    """Return the last confirmation in a folder's file; None if it is missing, unreadable or damaged.

    Then the changes after the delivered position are delivered again.
    """
    try:
        with folder.confirmed.open("rb") as file:
            return latest_confirmation(file.read(_FILE_BYTES))
    except OSError:
        return None
