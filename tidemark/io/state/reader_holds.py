"""How much of the outbox a reader may hold: a forgotten reader lapses, so that it stops no other.

A reader *holds* the values that the outbox keeps for it and that the required readers no longer need; if no reader is
required, those that the foremost reader no longer needs. A required reader never lapses, nor does the foremost one.
If no reader is required, none lapses before the outbox is full: another reader may have come that is far ahead of it.
"""

from collections.abc import Mapping

from tidemark.model.position import NO_SEQUENCE, Sequence
from tidemark.wire.state.outbox_ledger import OutboxLedger
from tidemark.wire.state.readers import Reader
from tidemark.wire.state.values import Identity, Watermark

HOLD_SHARE = 4  # a reader may hold a quarter of the outbox, unless `reader.hold_bytes` is set
HOLD_SHARE_MAX = 2  # at most half of it: the rest is for those that read
MARKS = 64  # of the bytes in a full outbox: what a reader holds is known to 1/64 of it

Readers = Mapping[str, Reader]


def hold_bytes_max(identity: Identity, configured: int) -> int:
    """Return how many bytes of this outbox a reader may hold; `configured`: `reader.hold_bytes`, 0: the default."""
    outbox = identity.outbox_bytes_max
    return min(configured or outbox // HOLD_SHARE, outbox // HOLD_SHARE_MAX)


def mark_bytes(identity: Identity) -> int:
    """Return the distance of the marks in the ledger, bytes."""
    return identity.outbox_bytes_max // MARKS


def active_readers(readers: Readers) -> dict[str, Reader]:
    """Return the readers for which the outbox keeps values."""
    return {name: reader for name, reader in readers.items() if not reader.is_lapsed}


def required_readers(readers: Readers) -> dict[str, Reader]:
    """Return the readers that count for the confirmed position; without any, confirmed follows delivered."""
    return {name: reader for name, reader in active_readers(readers).items() if reader.is_required}


def confirmable(readers: Readers, ledger: OutboxLedger, confirmed: Watermark | None) -> Sequence | None:
    """Return what all required readers have applied, if it is more than is confirmed; None: it is not.

    Trimmed values are confirmed, even if the watermark is before them: earlier versions left such states.
    """
    applied = min((reader.applied for reader in required_readers(readers).values()), default=NO_SEQUENCE)
    known = max(confirmed.sequence if confirmed is not None else NO_SEQUENCE, ledger.trimmed)
    return applied if applied > known else None


def unconfirmed_values(readers: Readers, ledger: OutboxLedger) -> int:
    """Return how many values of the outbox some required reader has not applied."""
    applied = min((reader.applied for reader in required_readers(readers).values()), default=ledger.head)
    return ledger.head - max(applied, ledger.trimmed)


def held_bytes(readers: Readers, ledger: OutboxLedger) -> dict[str, int]:
    """Return how many bytes each active reader holds that is not required."""
    active = active_readers(readers)
    required = [reader.trimmable for reader in active.values() if reader.is_required]
    needed = min(required) if required else max((one.trimmable for one in active.values()), default=ledger.trimmed)
    return {
        name: ledger.bytes_between(reader.trimmable, needed)
        for name, reader in active.items()
        if not reader.is_required
    }


def applied_by_awaited(readers: Readers, ledger: OutboxLedger) -> Sequence:
    """Return what those have applied that a full outbox waits for: all required readers; without any, the foremost."""
    active = active_readers(readers).values()
    required = [reader.applied for reader in active if reader.is_required]
    return min(required) if required else max((reader.applied for reader in active), default=ledger.trimmed)


def lapsing(readers: Readers, ledger: OutboxLedger, hold_bytes: int, *, is_full: bool) -> list[str]:
    """Return the readers that hold more than `hold_bytes`; if no reader is required and the outbox not full, none."""
    if ledger.byte_count <= hold_bytes:
        return []
    if not is_full and not any(reader.is_required for reader in active_readers(readers).values()):
        return []
    return [name for name, held in held_bytes(readers, ledger).items() if held > hold_bytes]
