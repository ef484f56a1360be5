"""A follower at its node's promotion: whether it may deliver, and what has to be corrected before (I12).

The start position comes from the markers and is in the state as `delivered`: every reader has confirmed it. A lake
skips, by position, later rows that it already has. This module determines the rest: that the lake has nothing of a
dead branch, which of its tables need another copy, and sequences that the lost outbox cannot have used. It is one
transaction, which ends `followed`; after a crash before it the next start repeats everything.
"""

import uuid
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Self

from tidemark.io.host.local_path import lake_location
from tidemark.io.node.replication import WalStream
from tidemark.io.process.config import Config
from tidemark.io.process.lake_config import LakeConfig
from tidemark.io.state.history_files import NoBase, base_for
from tidemark.io.state.incarnations import expect_markers_ahead
from tidemark.io.state.state_transaction import StateTransaction
from tidemark.io.state.state_views import StateMarks, StateView
from tidemark.model.errors import StateError
from tidemark.model.lsn import INVALID_LSN, SystemIdentifier, format_lsn
from tidemark.runtime.capture.network import Reached, check_delivered
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.recovery.lake_inventory import lake_inventory
from tidemark.runtime.recovery.rebuild import LakeInventory, numbers_behind
from tidemark.runtime.replay.diverged import DeadBranchDelivered
from tidemark.wire.recopies import TableKey
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress
from tidemark.wire.state.outbox_ledger import OutboxLedger
from tidemark.wire.state.process_log import Owner
from tidemark.wire.state.state_keys import CONFIRMED, DELIVERED, FOLLOWED, HAND_OVER, IDENTITY, LEDGER
from tidemark.wire.state.values import Followed, HandOver, Watermark

ATTEMPTS_MAX = 1 << 20  # to return, made by a lost sidecar: two years of one a minute


class NoStart(StateError):
    """A node was promoted, and no marker shows what the deliverer's readers have confirmed."""

    hint = (
        "start again with cdcctl init in a new state folder: its first copy recreates every table, and "
        "contains the changes that were not delivered"
    )


def check_start(view: StateView) -> None:
    """Raise `NoStart` if a follower has no start position, or no longer has the catalogs of that position."""
    followed, delivered = view.followed, view.delivered
    assert followed is not None, "it follows"
    assert delivered is not None, "a follower has a start position"
    if not followed.has_start:
        last = f"; the last marker is at {format_lsn(followed.leader.lsn)}" if followed.leader is not None else ""
        raise NoStart(f"no marker confirms a position after {followed.floor.position}{last}")
    try:
        base_for(view.history, delivered.pointer.restart_lsn)
    except NoBase as error:
        raise NoStart(f"delivery would begin from {delivered.pointer.position}: {error}") from error


@dataclass(frozen=True, slots=True)
class PromotionSettings:
    """The settings that a promotion reads."""

    dsn: str
    lake: str  # empty: no lake is looked at
    lake_config: LakeConfig  # of its object store
    copying: bool  # existing rows are copied

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return the settings of a configuration."""
        return cls(config.capture.dsn, config.standby.lake, config.lake, config.copy.enabled)


def find_start(context: CaptureContext, settings: PromotionSettings, owner: Owner) -> None:
    """Make a promoted follower's state that of a deliverer; do nothing if this was done before."""
    store = context.store
    view = store.view()
    if view.followed is None:
        return
    lake = lake_inventory(lake_location(settings.lake), view.identity, settings.lake_config) if settings.lake else None
    if lake is not None and lake.position is not None:
        _check_branch(settings.dsn, context.store.identity.system_identifier, lake)
    with store.transaction(None) as transaction:
        followed = transaction.followed()
        if followed is None:
            return
        epoch = transaction.begin_epoch(owner)
        expect_markers_ahead(transaction)
        # NB: the WAL to read again contains the lost sidecar's try-start markers; ours must have other numbers.
        attempt = (transaction.get(HAND_OVER) or HandOver()).attempt
        transaction.put(HAND_OVER, HandOver(max(epoch.number + ATTEMPTS_MAX, attempt)))
        if followed.leader is not None:
            _number_on(transaction, followed, lake)
        if lake is not None and settings.copying:
            for key, progress in promoted_copies(view.copies, lake).items():
                transaction.put_copy(*key, progress)
        transaction.drop(FOLLOWED)
        delivered = transaction.delivered()
    context.metrics.deliverer_lsn.set(INVALID_LSN)
    context.log.info(
        "start found",
        delivered=str(delivered.pointer.position) if delivered else None,
        restart_lsn=delivered.pointer.restart_lsn if delivered else None,
        lake_position=str(lake.position) if lake is not None else None,
        epoch=str(epoch),
    )


def is_waited_for(marks: StateMarks) -> bool:
    """Return whether the sidecar still has to find a start: until then no process delivers."""
    return marks.followed is not None


def _check_branch(dsn: str, system_identifier: SystemIdentifier, lake: LakeInventory) -> None:
    """Raise `DeadBranchDelivered` if the lake contains changes that the node does not have."""
    with closing(WalStream(dsn)) as stream:
        here = stream.identify(system_identifier)
        history = stream.timeline_history(here.timeline)
    try:
        check_delivered(history, Reached.by_delivering(lake.position))
    except DeadBranchDelivered as error:
        hint = (
            "create a new state with cdcctl init, and a new lake: this lake contains changes that the node does "
            "not have"
        )
        raise DeadBranchDelivered(str(error), hint=hint) from error


def _number_on(transaction: StateTransaction, followed: Followed, lake: LakeInventory | None) -> None:
    """Continue the outbox after the deliverer's sequences; its old values were confirmed at the deliverer.

    The outbox gets a new name: earlier sequences in Spark's checkpoints and in the lake become invalid.
    """
    assert followed.leader is not None, "another process has delivered"
    ledger, delivered = transaction.ledger(), transaction.delivered()
    assert delivered is not None, "a follower has a start position"
    transaction.outbox.trim(ledger, ledger.head)
    known = max(ledger.head, followed.leader.sequence, lake.sequence if lake is not None else ledger.head)
    head = numbers_behind(known, transaction.identity.outbox_bytes_max)
    transaction.put(LEDGER, OutboxLedger(head, head, trimmed_lsn=delivered.pointer.position.commit_lsn))
    transaction.put(IDENTITY, replace(transaction.identity, outbox_id=uuid.uuid4().hex))
    for name, reader in transaction.readers()[0].items():
        transaction.put_reader(name, replace(reader, applied=head, replayable=head))
    here = Watermark(delivered.pointer, head)
    transaction.put(DELIVERED, here)
    transaction.put(CONFIRMED, here)


def promoted_copies(known: Mapping[TableKey, CopyProgress], lake: LakeInventory) -> dict[TableKey, CopyProgress]:
    """Return the progress of each copy: done for tables that are complete in the lake, to be copied for all others."""
    generations, begun = lake.generations or {}, lake.unfinished
    found = {
        key: CopyProgress(CopyPhase.DONE, max(generation, known[key].generation if key in known else 0))
        for key, generation in generations.items()
    }
    for key, progress in known.items():
        if progress.phase is CopyPhase.LEFT:
            found[key] = progress
        elif key not in generations or progress.phase is CopyPhase.REFUSED:
            generation = max(progress.generation, generations.get(key, 0), begun.get(key, 0))
            found[key] = replace(progress, phase=CopyPhase.WAITING, generation=generation)
    return found
