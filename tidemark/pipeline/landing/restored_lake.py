"""Refuses to write into a lake that was restored as a whole from an older copy, until an operator adopts it.

Such a lake agrees with itself: its `_positions` and its tables are of one time. Only the reader's confirmations in the
outbox show that it contained more.
"""

from tidemark.io.host.clock import host_name
from tidemark.io.readers.adoption import behind, missing_text
from tidemark.model.errors import ConfigError
from tidemark.pipeline.landing.capture_port import CapturePort
from tidemark.pipeline.landing.landing import LakePositions
from tidemark.pipeline.source.outbox_port import OutboxPort


class LakeRestored(ConfigError):
    """A lake that lacks values which its reader has confirmed."""


def check_not_restored(
    lake: str, positions: LakePositions, outbox: OutboxPort, capture: CapturePort, reader: str
) -> None:
    """Raise `LakeRestored` if the lake lacks values of this outbox that `reader` has confirmed."""
    registered, applied = outbox.registered(reader), positions.applied
    if registered is None or positions.outbox != outbox.outbox_id or not behind(registered, applied.sequence):
        return
    confirmed = max(registered.applied, registered.replayable)
    facts = capture.facts()
    on = f"on {facts.host}, " if facts.host != host_name() else ""
    missing = missing_text(outbox.ledger(), applied.sequence)
    raise LakeRestored(
        f"the lake {lake} contains the changes up to {applied.position} (value {applied.sequence}), but reader "
        f"{reader!r} has confirmed those up to value {confirmed}: the lake was restored from an older copy"
        + (f", and {missing}" if missing else ""),
        hint='restore a newer copy, or write a new lake: docs/operate.md, "A lake was restored from a backup"'
        if missing
        else f"{on}cdcctl lake adopt --lake {lake} --state {facts.state} --reader {reader} continues from there",
    )
