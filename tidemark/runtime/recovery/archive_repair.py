"""Repair of an archive with a hole or with damage: an operator gives up the lost WAL, and the loss is reported (I29).

Behind a hole the catalogs are unknown: DDL inside it is lost as well, and nothing shows whether there was any. So
decoding cannot continue at the hole's end, nor behind a record that cannot be read. A new seed is read from the running
node, and the delivered pointer moves to it under a new epoch. All changes that committed in between are lost, also
those in WAL behind the hole, and transactions that began before the hole.

The replicas become correct again: every table that was captured whole is queued for another copy, as its next
generation, and planning finds tables created inside the hole as for a changed configuration. A dropped table is
reported as dropped. A table with different columns is emptied at once, as its old rows do not fit the new columns. In
the stream a message of the prefix `tidemark.loss` comes first, one for each database.
"""

from dataclasses import dataclass
from enum import Enum
from functools import partial

from tidemark.io.archive.archive_state import ArchiveState, WalSpan
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.failpoints import passed
from tidemark.io.node.node import Node
from tidemark.io.process.config import Config
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_views import StateView
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import format_lsn
from tidemark.model.message_prefix import LOSS_PREFIX
from tidemark.model.mode import Stage
from tidemark.model.position import Position
from tidemark.runtime.recovery.resumption import (
    Message,
    Resumption,
    WrongTables,
    by_seed,
    captures_without_copies,
    resume_delivery,
    table_corrections,
)
from tidemark.runtime.replay.archive_damage import find_damage
from tidemark.runtime.seed.initialise import databases_of, start_snapshot
from tidemark.runtime.seed.seed_observer import SeedObserver
from tidemark.runtime.seed.seeding import read_seed
from tidemark.wire.state.event_logs import Loss
from tidemark.wire.state.process_log import Owner


class RepairPoint(Enum):
    """Failpoints before and after the transaction of a repair."""

    PREPARED = "repair-prepared"  # the new base is written; the state is unchanged
    REPAIRED = "repair-repaired"


REPAIRED_IN = (Stage.ARCHIVE, Stage.HELD)  # the archiver delivers, and no return is in progress


class NotRepairable(ConfigError):
    """A state in which an archive must not be repaired."""

    hint = "`cdcctl status` shows which process delivers; switch with `cdcctl realtime off`"


@dataclass(frozen=True, slots=True)
class ArchiveBreak:
    """WAL that the archiver cannot read."""

    stretch: WalSpan
    damage: str = ""  # the damage, and its file; empty: the WAL is missing


def find_break(view: StateView, archive: ArchiveState) -> ArchiveBreak | None:
    """Return the break at which the archiver would stop; raise `NotRepairable` if the archiver does not deliver."""
    if view.stage not in REPAIRED_IN:
        raise NotRepairable(f"the capture is in stage {view.stage.value}: it does not continue from the archive")
    if view.start is None or view.beginning is None:
        raise NotRepairable("the capture has not begun", hint="complete it with cdcctl init")
    damage = find_damage(archive.folder, view.identity.system_identifier, view.start.restart_lsn)
    if damage is not None:
        return ArchiveBreak(WalSpan(damage.start_lsn, damage.end_lsn), damage.reason)
    gap = archive.gap_after(view.start.restart_lsn)
    return None if gap is None else ArchiveBreak(gap)


def last_confirmed(store: StateStore, view: StateView) -> Position:
    """Return the position after which changes are lost: what a killed consumer has confirmed is not."""
    assert view.start is not None, "found by `find_break`"
    with store.reading() as transaction:
        since = transaction.confirmed_since()
    return (since or view.start).position


def give_up(
    config: Config, store: StateStore, broken: ArchiveBreak, owner: Owner, observer: SeedObserver | None = None
) -> Loss:
    """Resume from a new seed, and record the loss. `owner`: the holder of the archiver's lock."""
    before = store.view()
    after = last_confirmed(store, before)
    at = seeded(config, store, before, observer)
    if config.copy.enabled:
        tables = table_corrections(config, store, before, at, WrongTables(None))
    else:
        tables = captures_without_copies(config, store, before, at, WrongTables(None))
    loss = Loss(
        at_us=SystemClock().wall_us(),
        after=after,
        hole_start_lsn=broken.stretch.start_lsn,
        hole_end_lsn=broken.stretch.end_lsn,
        resumed_timeline=at.timeline,
        resumed_lsn=at.lsn,
        tables=tables.count,
        damage=broken.damage,
    )
    passed(RepairPoint.PREPARED)
    resume_delivery(
        config,
        store,
        before,
        at,
        owner,
        tables=tables,
        messages=[loss_message(loss)],
        extra_writes=lambda transaction: transaction.record_loss(loss),
    )
    passed(RepairPoint.REPAIRED)
    return loss


def seeded(config: Config, store: StateStore, before: StateView, observer: SeedObserver | None) -> Resumption:
    """Take a new seed from the node; return how delivery resumes from it."""
    with Node(config.capture.dsn) as node:
        node.check_same_node(store.identity.system_identifier)
    select = partial(databases_of, config=config)
    seed = read_seed(
        config.capture.dsn, select, follows=config.seed.follows, wait_s=config.seed.wait_s, observer=observer
    )
    snapshot = "" if config.copy.enabled else start_snapshot(config, seed, observer)
    return by_seed(config, store, before, seed, snapshot)


def loss_message(loss: Loss) -> Message:
    """Return the message to the readers about a loss."""
    content = {
        "after": str(loss.after),
        "hole": [format_lsn(loss.hole_start_lsn), format_lsn(loss.hole_end_lsn)],
        "resumed": f"{loss.resumed_timeline}:{format_lsn(loss.resumed_lsn)}",
        "damage": loss.damage,
        "tables_copied_anew": loss.tables,
    }
    return LOSS_PREFIX, content
