"""Rebuilds a lost state folder from the spool: the copied catalog history, and the start position from the manifest.

The start is what every reader had confirmed when the manifest was written. Later changes are delivered again, and a
table of the lake skips by position what it already has. The outbox itself is lost: rows of a first copy that were in it
and are not in the lake are copied again, and the new outbox continues above all sequences that the old one can have
used. The capture begins in ARCHIVE if an archive is configured: WAL from the start is in the spool, and may exist only
there.

If standbys are followed, it begins as a follower if it was one, or if the node does not report that it is a primary:
another host may deliver. The sidecar determines that, and takes over if no other process delivers.
"""

import uuid
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from tidemark.engine.incarnations import replacing_epoch
from tidemark.io.archive.history_copy import fetch_history
from tidemark.io.archive.spool import Spool
from tidemark.io.archive.spool_manifest import read_manifest
from tidemark.io.host.clock import SystemClock
from tidemark.io.process.config import Config
from tidemark.io.state.environment import Guarded
from tidemark.io.state.incarnations import expect_markers_ahead
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ConfigError, NodeUnfit, NodeUnreachable
from tidemark.model.mode import STAGE_WHEN_MISSING, Stage
from tidemark.model.position import NO_SEQUENCE, Epoch, Position, Sequence
from tidemark.runtime.seed.initialise import is_standby, latest_timeline
from tidemark.wire.manifest import Manifest
from tidemark.wire.recopies import TableKey
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress, Fingerprint
from tidemark.wire.state.state_keys import (
    BEGINNING,
    DELIVERED,
    FINGERPRINT,
    FOLLOWED,
    HAND_OVER,
    HISTORY,
    JOURNAL,
    STAGE,
    TERM,
    TRANSFORMED,
)
from tidemark.wire.state.transformed_tables import TransformedTables
from tidemark.wire.state.values import Followed, HandOver, Term, Watermark
from tidemark.wire.values import HEADER_BYTES


@dataclass(frozen=True, slots=True)
class LakeInventory:
    """The inventory of a lake: its greatest sequence, each table's latest generation, and the last position."""

    sequence: Sequence = NO_SEQUENCE
    generations: Mapping[TableKey, int] | None = None  # of complete copies
    unfinished: Mapping[TableKey, int] = field(default_factory=dict)  # of incomplete copies
    position: Position | None = None


class OtherCapture(ConfigError):
    """A spool with the history of another capture."""

    hint = "capture.name in the configuration must be the name in the lost state"


def rebuild(
    config: Config, folder: StateFolder, spool: Spool, lake: LakeInventory | None, *, guarded: Guarded = nullcontext
) -> Stage | None:
    """Create the state of a capture from a spool; return its first stage, or None if the state exists already.

    Without a lake all tables are copied; a follower's tables are as its deliverer has them.
    """
    manifest = read_manifest(spool)
    if manifest.identity.capture != config.capture.name:
        raise OtherCapture(
            f"{spool.folder} contains the history of capture {manifest.identity.capture!r}, not of "
            f"{config.capture.name!r}"
        )
    bytes_max = config.outbox.bytes_max
    identity = replace(manifest.identity, outbox_id=uuid.uuid4().hex, outbox_bytes_max=bytes_max)
    stage = _stage(config, manifest)
    after, epoch = _numbers_after(manifest, lake), _epoch_after(config, manifest)
    with StateStore.create(folder, identity, numbers_after=after, guarded=guarded) as store:
        if store.view().beginning is not None:
            return None
        fetch_history(spool, manifest, folder.history, folder.file_mode)
        with store.transaction(None) as transaction:
            transaction.put(HISTORY, manifest.history)
            transaction.put(JOURNAL, manifest.journal)
            transaction.put(BEGINNING, manifest.beginning)
            transaction.put(DELIVERED, Watermark(manifest.start, transaction.ledger().head))
            transaction.put(STAGE, stage)
            if stage is Stage.FOLLOWER:
                transaction.put(FOLLOWED, _followed(manifest))
            transaction.put(TERM, Term(epoch, None))
            expect_markers_ahead(transaction)
            # NB: the WAL to read again contains the lost sidecar's try-start markers; ours must have other numbers.
            transaction.put(HAND_OVER, HandOver(attempt=epoch.number))
            transaction.put(TRANSFORMED, TransformedTables(is_lost=True))
            # NB: not as for a new capture: the lost state may have delivered tables that are gone at the next plan.
            transaction.put(FINGERPRINT, replace(manifest.fingerprint or Fingerprint(), shown={}))
            for key, progress in manifest.copies.items():
                copies = config.copy.enabled and manifest.followed is None
                transaction.put_copy(*key, _copy_of(key, progress, lake) if copies else progress)
    return stage


def _stage(config: Config, manifest: Manifest) -> Stage:
    if config.standby.follow and (manifest.followed is not None or not _is_primary(config)):
        return Stage.FOLLOWER
    return Stage.ARCHIVE if config.has_archive else STAGE_WHEN_MISSING


def _is_primary(config: Config) -> bool:
    """Return whether the node reports that it is not a standby."""
    try:
        return not is_standby(config)
    except (NodeUnreachable, NodeUnfit):
        return False


def _followed(manifest: Manifest) -> Followed:
    """Return the position of a follower that starts at the manifest's start; a deliverer had delivered up to it."""
    start = manifest.start
    if manifest.followed is None:
        return Followed(start, start, has_start=True)
    return replace(manifest.followed, pointer=start)


def _numbers_after(manifest: Manifest, lake: LakeInventory | None) -> Sequence:
    leader = manifest.followed.leader if manifest.followed is not None else None
    known = max(
        manifest.head,
        leader.sequence if leader is not None else NO_SEQUENCE,
        lake.sequence if lake is not None else NO_SEQUENCE,
    )
    return numbers_behind(known, manifest.identity.outbox_bytes_max)


def numbers_behind(known: Sequence, outbox_bytes_max: int) -> Sequence:
    """Return a sequence that a lost outbox cannot have reached: its bound limits how many values it contained."""
    return Sequence(known + outbox_bytes_max // HEADER_BYTES)


def _epoch_after(config: Config, manifest: Manifest) -> Epoch:
    """Return an epoch that the lost state cannot have reached since the manifest was written."""
    identity = manifest.identity
    timeline = latest_timeline(
        config, identity.system_identifier, identity.segment_bytes, manifest.start.position.timeline
    )
    last = manifest.term.epoch if manifest.term is not None else None
    return replacing_epoch(timeline, last, SystemClock().wall_us())


def _copy_of(key: TableKey, progress: CopyProgress, lake: LakeInventory | None) -> CopyProgress:
    """Return the progress of a table's copy: done only if the lake has the rows of exactly that generation."""
    if progress.phase is CopyPhase.LEFT:
        return progress
    generations = lake.generations if lake is not None else None
    in_lake = generations.get(key) if generations is not None else None
    if in_lake is None:
        return replace(progress, phase=CopyPhase.WAITING)
    if progress.phase is CopyPhase.DONE and in_lake == progress.generation:
        return progress
    return replace(progress, phase=CopyPhase.WAITING, generation=max(in_lake, progress.generation))
