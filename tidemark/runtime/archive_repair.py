"""Repair of an archive with a hole or with damage: what is lost is given up by an operator's word, and said (I29).

Behind a hole the catalogs are not known: DDL inside it is lost as well, and nothing tells if there was any. So decoding
cannot go on at the hole's end, nor behind a record that cannot be read. A new seed is taken from the running node, the
delivered pointer moves to it under a new epoch, and all that committed in between is lost as changes: also what stands
in WAL behind the hole, and transactions that began before it.

The replicas become right again all the same: every table that was captured whole waits to be copied anew, as its next
generation, and tables that came up inside the hole are found by planning as for a changed configuration. A table that
is gone is told as dropped. One whose columns are others now is emptied at once, as its rows have no place in the new
columns. In the stream a message of the prefix `tidemark.loss` comes first, one for each database.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from tidemark.decode.partitions import RootOf, under_own_name
from tidemark.io.archive_state import ArchiveState, Stretch
from tidemark.io.clock import SystemClock
from tidemark.io.config import Config
from tidemark.io.history_files import HistoryWriter
from tidemark.io.node import Node
from tidemark.io.state import StateStore
from tidemark.io.state_views import StateView
from tidemark.model.change import (
    LOSS_PREFIX,
    ChangeGroup,
    CopyBoundary,
    GroupItem,
    LogicalMessage,
    SchemaChange,
    SchemaEffect,
    SchemaEvent,
)
from tidemark.model.errors import ConfigError, Fenced
from tidemark.model.lsn import Oid, Xid, format_lsn
from tidemark.model.mode import Stage
from tidemark.model.position import Pointer, Position
from tidemark.model.relation import Relation
from tidemark.runtime.archive_damage import find_damage
from tidemark.runtime.copy_plan import TableKey
from tidemark.runtime.initialise import base_of, beginning_of, databases_of, place_before, settled
from tidemark.runtime.seeding import Seed, SeedObserver, take_seed
from tidemark.wire.outbox import EncodedGroup, encode_group
from tidemark.wire.state import (
    BEGINNING,
    FINGERPRINT,
    HISTORY,
    CopyPhase,
    CopyProgress,
    Fingerprint,
    HistoryIndex,
    Loss,
    Owner,
)

LossItem = LogicalMessage | SchemaEvent | CopyBoundary
REPAIRED_IN = (Stage.ARCHIVE, Stage.HELD)  # the archiver delivers, and nobody waits for it to reach a marker


class NotRepairable(ConfigError):
    """A state in which an archive is not to be repaired."""

    hint = "`cdcctl status` says who delivers; switch by `cdcctl realtime off`"


@dataclass(frozen=True, slots=True)
class Tables:
    """What becomes of the tables that were captured: those that are there, and those that are gone."""

    items: tuple[LossItem, ...]
    copies: Mapping[TableKey, CopyProgress]
    gone: tuple[TableKey, ...]


@dataclass(frozen=True, slots=True)
class Break:
    """WAL that the archiver cannot pass."""

    stretch: Stretch
    damage: str = ""  # what is wrong with it, and in which file; empty: it is missing


def find_break(view: StateView, archive: ArchiveState) -> Break | None:
    """Return what the archiver would stop at; raise `NotRepairable` where it is not the one that delivers."""
    if view.stage not in REPAIRED_IN:
        raise NotRepairable(f"the capture is in stage {view.stage.value}: the archive is not what it goes on from")
    if view.start is None or view.beginning is None:
        raise NotRepairable("nothing was begun yet", hint="finish it by cdcctl init")
    damage = find_damage(archive.folder, view.identity.system_identifier, view.start.restart_lsn)
    if damage is not None:
        return Break(Stretch(damage.start_lsn, damage.end_lsn), damage.reason)
    gap = archive.gap_after(view.start.restart_lsn)
    return None if gap is None else Break(gap)


def give_up(
    config: Config, store: StateStore, broken: Break, owner: Owner, observer: SeedObserver | None = None
) -> Loss:
    """Go on from a new seed, and record what is lost. `owner`: who holds the archiver's lock."""
    before = store.view()
    assert before.start is not None, "found by `find_break`"
    assert before.beginning is not None, "the same"
    with Node(config.capture.dsn) as node:
        node.check_same_node(store.identity.system_identifier)
    select = partial(databases_of, config=config)
    seed = take_seed(
        config.capture.dsn, select, follows=config.seed.follows, wait_s=config.seed.wait_s, observer=observer
    )
    snapshot = "" if config.copy.enabled else settled(config, seed, observer)
    index = _write_base(config, store, before, seed)
    store.learn_versions()
    root_of = config.select.selection().root_of
    tables = _tables(before, seed, _latest(store), root_of) if config.copy.enabled else Tables((), {}, ())
    loss = Loss(
        at_us=SystemClock().wall_us(),
        after=before.start.position,
        hole_start_lsn=broken.stretch.start_lsn,
        hole_end_lsn=broken.stretch.end_lsn,
        resumed_timeline=seed.timeline,
        resumed_lsn=seed.lsn,
        tables=len(tables.copies),
        damage=broken.damage,
    )
    group = _group(config, seed, [*_messages(loss, seed), *tables.items])
    with store.transaction(None) as moving:
        if (moving.stage(), moving.term(), moving.history()) != (before.stage, before.term, before.history):
            raise Fenced("another process went on while the seed was taken", hint="see `cdcctl status`, then try again")
        moving.put(HISTORY, index)
        moving.put(BEGINNING, beginning_of(seed, snapshot, before.beginning.types))
        moving.deliver(group)
        moving.take_epoch(owner)
        for key, progress in tables.copies.items():
            moving.put_copy(*key, progress)
        for key in tables.gone:
            moving.drop_copy(*key)
        if config.copy.enabled:
            moving.put(FINGERPRINT, Fingerprint())  # so that planning looks at every table there is
        moving.note_loss(loss)
    return loss


def _write_base(config: Config, store: StateStore, view: StateView, seed: Seed) -> HistoryIndex:
    """Write the seed's base beside the others; it counts once the index that is returned is stored."""
    stored = [view.history]
    writer = HistoryWriter(
        store.folder.history,
        view.history,
        view.journal,
        major=seed.format.major,
        system_identifier=seed.node.system_identifier,
        file_bytes_max=config.history.journal_file_bytes,
        file_mode=store.folder.file_mode,
        store=stored.append,
    )
    writer.write_base(base_of(seed), seed.lsn)
    writer.close()
    return stored[-1]


def _latest(store: StateStore) -> Mapping[TableKey, Relation]:
    """Return the description of each table that was given out last."""
    return {(database, relation.oid): relation for _, (database, relation) in sorted(store.relations().items())}


def _tables(view: StateView, seed: Seed, latest: Mapping[TableKey, Relation], root_of: RootOf) -> Tables:
    items: list[LossItem] = []
    copies: dict[TableKey, CopyProgress] = {}
    gone: list[TableKey] = []
    at = place_before(seed)
    for key, copy in sorted(view.copies.items()):
        mirror = seed.mirrors.get(key[0])
        now = mirror.relation(key[1]) if mirror is not None else None
        told = latest.get(key)
        shown = under_own_name(now, root_of) if now is not None else None
        if now is None:
            gone.append(key)
            if told is not None:
                items.append(_drop(at, key[0], told))
        elif copy.phase is CopyPhase.LEFT:
            continue
        elif shown is not None and told is not None and told != shown:
            copies[key] = CopyProgress(CopyPhase.COPYING, copy.generation + 1, lx=at.commit_lsn)
            items.append(CopyBoundary(at, key[0], shown, copy.generation + 1, True, ""))
        else:
            copies[key] = replace(copy, phase=CopyPhase.WAITING)
    return Tables(tuple(items), copies, tuple(gone))


def _drop(at: Position, database: Oid, relation: Relation) -> SchemaEvent:
    return SchemaEvent(
        position=at,
        lsn=at.commit_lsn,
        database=database,
        xid=Xid(0),
        change=SchemaChange.DROP,
        effect=SchemaEffect.METADATA,
        before=relation,
        after=None,
    )


def _messages(loss: Loss, seed: Seed) -> Iterator[LogicalMessage]:
    """Give the message that a reader of each database's log finds."""
    content = {
        "after": str(loss.after),
        "hole": [format_lsn(loss.hole_start_lsn), format_lsn(loss.hole_end_lsn)],
        "resumed": f"{loss.resumed_timeline}:{format_lsn(loss.resumed_lsn)}",
        "damage": loss.damage,
        "tables_copied_anew": loss.tables,
    }
    at = place_before(seed)
    for database in sorted(seed.databases):
        yield LogicalMessage(
            position=at,
            lsn=at.commit_lsn,
            database=database,
            xid=Xid(0),
            transactional=False,
            prefix=LOSS_PREFIX,
            content=json.dumps(content).encode(),
        )


def _group(config: Config, seed: Seed, items: Iterable[LossItem]) -> EncodedGroup:
    """Return the group that moves the delivered pointer to the seed; a consumer of one's own gets no items by it."""
    placed: list[GroupItem] = []
    if config.deliver.consumer == "outbox":
        for ordinal, item in enumerate(items):
            placed.append(replace(item, position=place_before(seed, ordinal)))
    last = Pointer(place_before(seed, max(0, len(placed) - 1)), seed.lsn)
    return encode_group(ChangeGroup(place_before(seed), last, placed, (), 0, 0))
