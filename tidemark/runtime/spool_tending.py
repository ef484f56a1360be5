"""What is done for the spool now and then: trimming, and the copy of the catalog history.

Trimming comes first: it may make the room that the copy takes. It goes by the manifest that is there, so WAL that a
state made anew would need stays until a later manifest is durable. A spool without one is not trimmed.
"""

from dataclasses import dataclass
from pathlib import Path

from tidemark.io.config import Config
from tidemark.io.history_copy import NoHistoryCopy, copy_history, read_manifest
from tidemark.io.spool import Spool
from tidemark.io.state import StateStore
from tidemark.io.trimming import Horizon, Trimmed, horizon_of, trim
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Tended:
    """What was done."""

    horizon: Horizon | None  # below which WAL was removed; None: nothing may be yet
    trimmed: Trimmed
    manifest: Manifest | None  # as it is now; None as long as the state has no beginning


def tend_spool(config: Config, store: StateStore) -> Tended | None:
    """Trim the configured archive and bring its history up to now; None, and nothing is touched, if it is not ours.

    For whoever holds the archiver's lock. Takes moments, and up to a second where 100,000 segments are there.
    """
    if not config.has_archive or not (spool := Spool(Path(config.archive.folder))).is_ours:
        return None
    before = _manifest(spool)
    horizon, trimmed = None, Trimmed()
    if before is not None:
        copied_lsn = before.start.restart_lsn
        horizon = horizon_of(store.view(), keep_bytes=config.archive.keep_bytes, copied_lsn=copied_lsn)
        if horizon is not None:
            trimmed = trim(spool, horizon, store.identity.segment_bytes)
    return Tended(horizon, trimmed, copy_history(store, spool))


def _manifest(spool: Spool) -> Manifest | None:
    """Return the manifest; one that is damaged is written anew, and nothing is trimmed by it."""
    try:
        return read_manifest(spool)
    except (NoHistoryCopy, DamagedValue):
        return None
