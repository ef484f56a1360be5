"""Implements `cdcctl init`: checks the node, reads the seed, writes the state with its first base. Idempotent.

WAL does not contain the whole of a transaction that was open at the seed. A first copy contains its changes; without a
first copy, `init` waits for its end, so that everything that commits after `init` is delivered.
"""

import uuid
from collections.abc import Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from tidemark.decode.catalog.history import Base, OpenTransactionStart
from tidemark.decode.catalog.layout import HALF_DROPPED
from tidemark.engine.incarnations import replacing_epoch
from tidemark.io.archive.archive_listing import ArchiveListing
from tidemark.io.archive.archive_setup import prepare_archive
from tidemark.io.archive.archive_state import NoArchive
from tidemark.io.flight.server_token import make_server_token
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.file_access import ServerUser
from tidemark.io.node.node import Node, NodeFacts
from tidemark.io.node.replication import WalStream
from tidemark.io.process.config import Config
from tidemark.io.process.marker_key import make_marker_key
from tidemark.io.state.environment import Guarded
from tidemark.io.state.history_files import HistoryWriter
from tidemark.io.state.incarnations import expect_markers_ahead
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.io.state.state_transaction import ExtraWrites, StateTransaction
from tidemark.io.state.state_views import StateView
from tidemark.model.errors import ConfigError, NodeUnfit, NodeUnreachable
from tidemark.model.lsn import Lsn, SystemIdentifier, TimelineId
from tidemark.model.mapping import TypeMapping
from tidemark.model.mode import STAGE_WHEN_MISSING, Stage
from tidemark.model.position import NO_SEQUENCE, Epoch, Pointer, Position
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.model.snapshot import ReplayedSnapshot
from tidemark.runtime.seed.copy_plan import selection_reported
from tidemark.runtime.seed.copy_planning import plan_copies
from tidemark.runtime.seed.copy_sessions import CopySessions
from tidemark.runtime.seed.seed_observer import SeedObserver
from tidemark.runtime.seed.seeding import Seed, read_seed, wait_for_start
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress, Fingerprint
from tidemark.wire.state.history_index import HistoryIndex
from tidemark.wire.state.state_keys import BEGINNING, DELIVERED, FINGERPRINT, FOLLOWED, HAND_OVER, HISTORY, STAGE, TERM
from tidemark.wire.state.values import Beginning, Followed, HandOver, Identity, Term, Watermark

ARCHIVE_S = 10.0  # for listing the archive's folder

DATABASES = f"""
    SELECT datname FROM pg_catalog.pg_database
    WHERE datallowconn AND NOT datistemplate AND datconnlimit <> {HALF_DROPPED} ORDER BY oid
"""  # noqa: S608 - a constant of ours


class NoDatabase(ConfigError):
    """No database of the node matches the patterns."""

    hint = "correct --database, or select.databases in the configuration; psql -l lists the databases of the node"


def databases_of(node: Node, config: Config) -> list[str]:
    """Return the databases that the patterns select and that allow connections."""
    rows = node.query(DATABASES)
    selection = config.select.selection()
    found = [str(name) for (name,) in rows if selection.selects_database(str(name))]
    if not found:
        raise NoDatabase(f"no database of {node.where} matches {', '.join(config.select.databases)}")
    return found


def initialise(
    config: Config,
    folder: StateFolder,
    observer: SeedObserver | None = None,
    *,
    numbers_after: OutboxSequence = NO_SEQUENCE,
    guarded: Guarded = nullcontext,
) -> bool:
    """Create the state of a capture; return False if it is already complete."""
    with Node(config.capture.dsn) as node:
        facts = node.check_fitness()
        databases_of(node, config)  # raises if there is none
        user = archiving_user(node)
    if config.markers.dsn:
        _check_primary(config.markers.dsn, facts.system_identifier)
    with _create(config, folder, facts, guarded, numbers_after=numbers_after, user=user) as store:
        if store.view().beginning is not None:
            return False
        select = partial(databases_of, config=config)
        seed = read_seed(
            config.capture.dsn, select, follows=config.seed.follows, wait_s=config.seed.wait_s, observer=observer
        )
        if config.standby.follow and is_standby(config):
            extra_writes = _begin_to_follow(config, store, seed, observer)
            _write_beginning(config, store, seed, "", stage=Stage.FOLLOWER, extra_writes=extra_writes)
        else:
            snapshot = "" if config.copy.enabled else start_snapshot(config, seed, observer)
            _write_beginning(config, store, seed, snapshot)
    return True


def archiving_user(node: Node) -> ServerUser | None:
    """Return the user that runs the node's archive_command; None: unknown, or a standby, which archives nothing."""
    archiving = node.archiving()
    return archiving.server if archiving.is_on or not node.is_in_recovery() else None


def is_standby(config: Config) -> bool:
    """Return whether the captured node is a standby now."""
    with Node(config.capture.dsn) as node:
        return node.is_in_recovery()


def _begin_to_follow(config: Config, store: StateStore, seed: Seed, observer: SeedObserver | None) -> ExtraWrites:
    """Return the first values of a follower's state: another process has delivered all existing rows."""
    with closing(CopySessions(config.capture.dsn, store.identity)) as sessions:
        node = sessions.node()
        wait_for_start(node, seed, wait_s=config.seed.wait_s, observer=observer)
        floor = Pointer(Position(seed.timeline, node.flush_lsn(), 0), seed.lsn)
        view = replace(store.view(), beginning=beginning_of(seed, "", config.types.mapping()))
        moves = plan_copies(config.select, config.copy, view, sessions).moves
    before = Pointer(position_before(seed), seed.lsn)

    def extra_writes(transaction: StateTransaction) -> None:
        transaction.put(FOLLOWED, Followed(before, floor, has_start=False))
        transaction.put(FINGERPRINT, Fingerprint(selection_reported(config.select, config.copy)))
        for key in moves:
            transaction.put_copy(*key, CopyProgress(CopyPhase.DONE, 0))

    return extra_writes


def initialise_from_backup(config: Config, folder: StateFolder, seed: Seed, *, guarded: Guarded = nullcontext) -> bool:
    """Create the state of a capture from a seed without a server; return False if it is already complete.

    It is unknown where WAL from the seed on is available: in the archive, if one is configured. That WAL may have
    markers of an earlier state of the capture, signed by the same key; they must not fence this one. For that the
    latest timeline is read from the archive, or, without an archive, from the node if it answers.
    """
    with _create(config, folder, seed.node, guarded) as store:
        if store.view().beginning is not None:
            return False
        snapshot = "" if config.copy.enabled else str(ReplayedSnapshot(seed.complete_from, seed.lsn))
        stage = Stage.ARCHIVE if config.has_archive else STAGE_WHEN_MISSING
        timeline = latest_timeline(config, seed.node.system_identifier, seed.node.segment_bytes, seed.timeline)
        epoch = replacing_epoch(timeline, None, SystemClock().wall_us())
        _write_beginning(config, store, seed, snapshot, stage=stage, extra_writes=partial(_replace_earlier, epoch))
    return True


def latest_timeline(
    config: Config, system_identifier: SystemIdentifier, segment_bytes: int, known: TimelineId
) -> TimelineId:
    """Return the latest timeline of the archive, or else of the node; at least `known`, if neither answers."""
    found: TimelineId | None = None
    if config.has_archive:
        with suppress(NoArchive):
            found = ArchiveListing(Path(config.archive.folder), segment_bytes).result(ARCHIVE_S).timeline
    if found is None and config.capture.dsn:
        with suppress(NodeUnreachable, NodeUnfit), closing(WalStream(config.capture.dsn)) as stream:
            found = stream.identify(system_identifier).timeline
    return max(known, found or known)


def _replace_earlier(epoch: Epoch, transaction: StateTransaction) -> None:
    """Record that this state replaces an earlier one of the capture, with epochs and attempts before `epoch`."""
    transaction.put(TERM, Term(epoch, None))
    transaction.put(HAND_OVER, HandOver(attempt=epoch.number))
    expect_markers_ahead(transaction)


def _create(
    config: Config,
    folder: StateFolder,
    facts: NodeFacts,
    guarded: Guarded,
    *,
    numbers_after: OutboxSequence = NO_SEQUENCE,
    user: ServerUser | None = None,
) -> StateStore:
    """Create the state with its identity and the files beside it; or open the existing one."""
    config.ring_bytes(facts.segment_bytes)  # rejects a ring that is too small for the node
    prepare_archive(config, facts.system_identifier, user)  # rejects a folder that cannot be the archive
    make_marker_key(config, folder)
    make_server_token(config.server, folder)
    identity = Identity(
        capture=config.capture.name,
        system_identifier=facts.system_identifier,
        outbox_id=uuid.uuid4().hex,
        server_major=facts.major,
        segment_bytes=facts.segment_bytes,
        outbox_bytes_max=config.outbox.bytes_max,
    )
    return StateStore.create(folder, identity, numbers_after=numbers_after, guarded=guarded)


def _check_primary(dsn: str, system_identifier: SystemIdentifier) -> None:
    """Check the cluster to which markers go, and that its WAL can be decoded: a standby reports its own settings."""
    with Node(dsn) as primary:
        primary.check_same_node(system_identifier)
        primary.check_settings()


def start_snapshot(config: Config, seed: Seed, observer: SeedObserver | None) -> str:
    """Wait for the transactions older than the seed; return the snapshot after which the changes begin."""
    with Node(config.capture.dsn) as node:
        return str(wait_for_start(node, seed, wait_s=config.seed.wait_s, observer=observer))


def _write_beginning(
    config: Config,
    store: StateStore,
    seed: Seed,
    snapshot: str,
    *,
    stage: Stage = STAGE_WHEN_MISSING,
    extra_writes: ExtraWrites | None = None,
) -> None:
    """Write the first base, then in one transaction all values that refer to it, and those of `extra_writes`."""
    history = write_base(config, store, store.view(), seed)
    start = Pointer(position_before(seed), seed.lsn)
    with store.transaction(None) as transaction:
        transaction.put(HISTORY, history)
        transaction.put(BEGINNING, beginning_of(seed, snapshot, config.types.mapping()))
        transaction.put(DELIVERED, Watermark(start, transaction.ledger().head))
        if stage is not STAGE_WHEN_MISSING:
            transaction.put(STAGE, stage)
        if extra_writes is not None:
            extra_writes(transaction)


def write_base(config: Config, store: StateStore, before: StateView, seed: Seed) -> HistoryIndex:
    """Write the seed's base beside those of `before`; it is valid once the returned index is stored."""
    stored = [before.history]
    writer = HistoryWriter(
        store.folder.history,
        before.history,
        before.journal,
        major=seed.format.major,
        system_identifier=seed.node.system_identifier,
        file_bytes_max=config.history.journal_file_bytes,
        file_mode=store.folder.file_mode,
        store=stored.append,
    )
    writer.write_base(base_of(seed), seed.lsn)
    writer.close()
    return stored[-1]


def base_of(seed: Seed) -> Base:
    """Return the base with the contents of a seed."""
    return Base(
        system_identifier=seed.node.system_identifier,
        timeline=seed.timeline,
        lsn=seed.lsn,
        major=seed.format.major,
        next_xid=seed.complete_from,
        mirrors=seed.mirrors,
        open_transactions=_open(seed),
        top_of=seed.top_of,
    )


def beginning_of(seed: Seed, snapshot: str, types: TypeMapping) -> Beginning:
    """Return the beginning of a capture that starts with a seed."""
    encodings = {oid: seed.mirrors[oid].encoding for oid in seed.databases}
    return Beginning(seed.timeline, seed.lsn, seed.complete_from, dict(seed.databases), snapshot, encodings, types)


def position_before(seed: Seed, ordinal: int = 0) -> Position:
    """Return a position before all that begins at or after a seed: records begin at multiples of 8."""
    return Position(seed.timeline, Lsn(seed.lsn - 1), ordinal)


def _open(seed: Seed) -> Sequence[OpenTransactionStart]:
    return tuple(OpenTransactionStart(top_xid, seed.lsn) for top_xid in sorted(set(seed.top_of.values())))
