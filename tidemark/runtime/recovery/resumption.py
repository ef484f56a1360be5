"""Resumes delivery at another position than the last delivered one, at an operator's command, in one transaction.

Two commands do it: `archive repair`, which gives up WAL, and `rewind`, which gives up a dead branch. The delivered
pointer moves to the position where delivery resumes, under a new epoch. Messages come first in the stream, one for each
database; then the correction of the tables that are wrong from there on:

    a table that exists         is queued for another copy, as its next generation
    one with different columns  is emptied at once, as its old rows do not fit the new columns, and then copied
    one that was dropped        is reported as dropped
    one that exists again       is reported as created, and then copied
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidemark.decode.catalog.databases import DatabaseMirrors
from tidemark.decode.groups.partitions import has_rows, under_own_name
from tidemark.decode.transactions.schema_changes import is_captured
from tidemark.engine.selection import Selection
from tidemark.io.process.config import Config
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_transaction import StateTransaction
from tidemark.io.state.state_views import StateView
from tidemark.model.change import (
    ChangeGroup,
    CopyBoundary,
    GroupItem,
    LogicalMessage,
    SchemaChange,
    SchemaEffect,
    SchemaEvent,
)
from tidemark.model.errors import Fenced
from tidemark.model.lsn import INVALID_LSN, Lsn, Oid, TimelineId, Xid
from tidemark.model.position import Pointer, Position
from tidemark.model.relation import Relation
from tidemark.runtime.plugins.delivered_versions import delivered_versions
from tidemark.runtime.seed.initialise import beginning_of, write_base
from tidemark.runtime.seed.seeding import Seed
from tidemark.wire.outbox import encode_group
from tidemark.wire.recopies import TableKey
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress, DueNotice, Fingerprint
from tidemark.wire.state.history_index import HistoryIndex
from tidemark.wire.state.process_log import Owner
from tidemark.wire.state.state_keys import BEGINNING, FINGERPRINT
from tidemark.wire.state.values import Beginning
from tidemark.wire.values import EncodedGroup

CorrectionItem = LogicalMessage | SchemaEvent | CopyBoundary
Message = tuple[str, Mapping[str, object]]  # prefix, and content as JSON


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where delivery resumes, with the catalogs of that position."""

    timeline: TimelineId
    lsn: Lsn  # transactions that commit from here on are delivered
    restart_lsn: Lsn  # decoding begins here
    history: HistoryIndex
    mirrors: DatabaseMirrors  # the catalogs at `lsn`
    databases: Collection[Oid]  # the captured databases
    beginning: Beginning | None = None  # of a new seed; None: the kept catalog history continues
    after: Position | None = None  # delivery resumes right after it, whatever `lsn` is; None: at `lsn`

    def position(self, ordinal: int = 0) -> Position:
        """Return a position before all delivered changes: records begin at multiples of 8."""
        if self.after is not None:
            return replace(self.after, ordinal=self.after.ordinal + 1 + ordinal)
        return Position(self.timeline, Lsn(self.lsn - 1), ordinal)


@dataclass(frozen=True, slots=True)
class TableCorrections:
    """The corrections of wrong tables."""

    items: Sequence[CorrectionItem] = ()
    copies: Mapping[TableKey, CopyProgress] = field(default_factory=dict)
    gone: Sequence[TableKey] = ()

    @property
    def count(self) -> int:
        """The number of tables that are copied again."""
        return sum(copy.is_open for copy in self.copies.values())


@dataclass(frozen=True, slots=True)
class WrongTables:
    """Which tables are wrong, and in which way."""

    only: Collection[TableKey] | None  # None: all
    after_lsn: Lsn = INVALID_LSN  # they are copied once delivery has reached this
    created_on_dead_branch: bool = False  # the ones that no longer exist
    unknown_too: bool = False  # also existing tables that the state does not know

    def has(self, key: TableKey) -> bool:
        """Return whether a known table is wrong."""
        return self.only is None or key in self.only


def by_seed(config: Config, store: StateStore, before: StateView, seed: Seed, snapshot: str) -> Resumption:
    """Write the seed's base; return how delivery resumes from it."""
    assert before.beginning is not None, "something was begun"
    return Resumption(
        timeline=seed.timeline,
        lsn=seed.lsn,
        restart_lsn=seed.lsn,
        history=write_base(config, store, before, seed),
        mirrors=seed.mirrors,
        databases=seed.databases.keys(),
        beginning=beginning_of(seed, snapshot, before.beginning.types),
    )


def table_corrections(
    config: Config, store: StateStore, view: StateView, at: Resumption, wrong: WrongTables
) -> TableCorrections:
    """Return the corrections of the `wrong` tables, from the catalogs there and the last delivered descriptions."""
    assert view.beginning is not None, "something was begun"
    selection = config.select.selection()
    delivered = delivered_versions(config, view.beginning.types, at.mirrors.names)
    latest = store.latest_versions()
    items: list[CorrectionItem] = []
    copies: dict[TableKey, CopyProgress] = {}
    gone: list[TableKey] = []
    unknown = set(_tables_of(at)) - view.copies.keys() if wrong.unknown_too else set()
    for key in sorted(view.copies.keys() | latest.keys() | unknown):
        if not wrong.has(key) and key not in unknown:
            continue
        mirror = at.mirrors.get(key[0])
        now = mirror.relation(key[1]) if mirror is not None else None
        copy, latest_version = view.copies.get(key), latest.get(key)
        own = under_own_name(now, selection.root_of) if now is not None and key[0] in at.databases else None
        shown = delivered(key[0], own)
        selected = shown if shown is not None and is_captured(now) and _is_copied(shown, selection) else None
        if now is None:
            if copy is not None:
                gone.append(key)
            if copy is not None and latest_version is not None:
                items += _dropped(at, key, latest_version, copy, created_on_dead_branch=wrong.created_on_dead_branch)
        elif copy is None:
            if selected is not None:
                items.append(_schema_event(at, key[0], SchemaChange.CREATE, None, selected))
                copies[key] = CopyProgress(CopyPhase.WAITING, 0, after_lsn=wrong.after_lsn)
        elif copy.phase is CopyPhase.LEFT and selected is None:
            copies[key] = copy.without_snapshot()  # LEFT because of a change that is given up, if it is selected there
        elif shown is not None and latest_version is not None and latest_version != shown:
            generation = copy.generation + 1
            items.append(CopyBoundary(at.position(), key[0], shown, generation, True, ""))
            copies[key] = CopyProgress(
                CopyPhase.COPYING, generation, lx=at.position().commit_lsn, after_lsn=wrong.after_lsn
            )
        else:
            # NB: without the old snapshot: it may show changes of the dead branch, by xids that are assigned again.
            copies[key] = replace(copy.without_snapshot(), phase=CopyPhase.WAITING, after_lsn=wrong.after_lsn)
    return TableCorrections(items, copies, gone)


def captures_without_copies(
    config: Config, store: StateStore, view: StateView, at: Resumption, wrong: WrongTables
) -> TableCorrections:
    """Return the corrections of the `wrong` tables if no table is copied: their capture begins there.

    Their copies are without snapshots, which could hide changes of the stream.
    """
    selection = config.select.selection()
    latest = store.latest_versions()
    copies = {key: copy.without_snapshot() for key, copy in view.copies.items() if wrong.has(key)}
    tables = set(_tables_of(at))
    for key in tables:
        relation = at.mirrors[key[0]].relation(key[1])
        shown = under_own_name(relation, selection.root_of) if is_captured(relation) else None
        if wrong.has(key) and shown is not None and _is_copied(shown, selection):
            known = copies.get(key, CopyProgress(CopyPhase.PARTIAL if key in latest else CopyPhase.LEFT, 0))
            was_captured = known.phase is not CopyPhase.LEFT and known.capture is DueNotice.NONE
            due = DueNotice.ENDS if was_captured else known.capture
            copies[key] = replace(known, phase=CopyPhase.LEFT, capture=due.after_return)
    gone = {key: version for key, version in latest.items() if wrong.has(key) and not _exists(at, key)}
    drops = [_schema_event(at, key[0], SchemaChange.DROP, version, None) for key, version in sorted(gone.items())]
    return TableCorrections(drops, {key: copy for key, copy in copies.items() if key not in gone}, list(gone))


def resume_delivery(
    config: Config,
    store: StateStore,
    before: StateView,
    at: Resumption,
    owner: Owner,
    *,
    tables: TableCorrections,
    messages: Iterable[Message],
    extra_writes: Callable[[StateTransaction], None],
) -> None:
    """Move the delivered pointer to `at` under a new epoch of `owner`, and deliver `messages` and corrections.

    The pointer stays if delivery resumes after the last delivered change. `extra_writes` writes further values in the
    same transaction. Raise `Fenced`, with nothing written, if the state has changed since `before` was read.
    """
    store.read_versions()
    group_of_tables = _group(config, at, [*_messages(at, messages), *tables.items])
    group = replace(group_of_tables, moves_delivered=at.after is None)
    with store.transaction(None) as transaction:
        if (transaction.stage(), transaction.term(), transaction.history()) != (
            before.stage,
            before.term,
            before.history,
        ):
            raise Fenced("another process delivered meanwhile", hint="see `cdcctl status`, then try again")
        transaction.put_history(at.history)
        if at.beginning is not None:
            transaction.put(BEGINNING, at.beginning)
        transaction.deliver(group)
        transaction.begin_epoch(owner)
        for key, progress in tables.copies.items():
            transaction.put_copy(*key, progress)
        for key in tables.gone:
            transaction.drop_copy(*key)
        if config.copy.enabled and at.beginning is not None:
            transaction.put(FINGERPRINT, Fingerprint())  # so that planning considers every existing table
        extra_writes(transaction)


def _exists(at: Resumption, key: TableKey) -> bool:
    mirror = at.mirrors.get(key[0])
    return mirror is not None and mirror.file_of(key[1]) is not None


def _tables_of(at: Resumption) -> Iterator[TableKey]:
    """Yield the tables of the captured databases."""
    for database in at.mirrors.keys() & set(at.databases):
        yield from ((database, relation.oid) for relation in at.mirrors[database].relations())


def _is_copied(relation: Relation, selection: Selection) -> bool:
    return has_rows(relation) and selection.selects(relation)


def _dropped(
    at: Resumption, key: TableKey, version: Relation, copy: CopyProgress, *, created_on_dead_branch: bool
) -> Iterator[SchemaEvent | CopyBoundary]:
    """Report a dropped table; one of a dead branch is emptied first, since another table may get its OID."""
    if created_on_dead_branch:
        for is_begin in (True, False):
            yield CopyBoundary(at.position(), key[0], version, copy.generation + 1, is_begin, "")
    yield _schema_event(at, key[0], SchemaChange.DROP, version, None)


def _schema_event(
    at: Resumption, database: Oid, change: SchemaChange, before: Relation | None, after: Relation | None
) -> SchemaEvent:
    position = at.position()
    return SchemaEvent(
        position=position,
        lsn=position.commit_lsn,
        database=database,
        xid=Xid(0),
        change=change,
        effect=SchemaEffect.METADATA,
        before=before,
        after=after,
    )


def _messages(at: Resumption, messages: Iterable[Message]) -> Iterator[LogicalMessage]:
    """Yield the messages for each database's log."""
    position = at.position()
    for prefix, content in messages:
        for database in sorted(at.databases):
            yield LogicalMessage(
                position=position,
                lsn=position.commit_lsn,
                database=database,
                xid=Xid(0),
                transactional=False,
                prefix=prefix,
                content=json.dumps(content).encode(),
            )


def _group(config: Config, at: Resumption, items: Iterable[CorrectionItem]) -> EncodedGroup:
    """Return the group that moves the delivered pointer; for a custom consumer it has no items."""
    positioned: list[GroupItem] = []
    if config.deliver.consumer == "outbox":
        positioned += [replace(item, position=at.position(ordinal)) for ordinal, item in enumerate(items)]
    last = Pointer(at.position(max(0, len(positioned) - 1)), at.restart_lsn)
    return encode_group(ChangeGroup(at.position(), last, positioned, (), 0, 0))
