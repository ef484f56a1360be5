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
from tidemark.decode.groups.partitions import under_own_name
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
from tidemark.runtime.first_copy.selected_tables import COPIED_KIND
from tidemark.runtime.seed.copy_plan import TableKey
from tidemark.runtime.seed.initialise import beginning_of, write_base
from tidemark.runtime.seed.seeding import Seed
from tidemark.wire.outbox import encode_group
from tidemark.wire.state import (
    BEGINNING,
    FINGERPRINT,
    Beginning,
    CopyPhase,
    CopyProgress,
    Fingerprint,
    HistoryIndex,
    Owner,
)
from tidemark.wire.values import EncodedGroup

Reported = LogicalMessage | SchemaEvent | CopyBoundary
Message = tuple[str, Mapping[str, object]]  # prefix, and content as JSON


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where delivering goes on, and what is known there."""

    timeline: TimelineId
    lsn: Lsn  # what commits from here on is given out
    restart_lsn: Lsn  # decoding begins here
    history: HistoryIndex
    mirrors: DatabaseMirrors  # the catalogs at `lsn`
    databases: Collection[Oid]  # that are captured
    beginning: Beginning | None = None  # of a new seed; None: decoding goes on by the catalogs that were kept
    after: Position | None = None  # delivering goes on right behind it, whatever `lsn` is; None: at `lsn`

    def place(self, ordinal: int = 0) -> Position:
        """Return a position before all that is given out: records stand at multiples of 8."""
        if self.after is not None:
            return replace(self.after, ordinal=self.after.ordinal + 1 + ordinal)
        return Position(self.timeline, Lsn(self.lsn - 1), ordinal)


@dataclass(frozen=True, slots=True)
class Tables:
    """What becomes of the tables that are wrong."""

    items: Sequence[Reported] = ()
    copies: Mapping[TableKey, CopyProgress] = field(default_factory=dict)
    gone: Sequence[TableKey] = ()

    @property
    def count(self) -> int:
        """How many are copied again."""
        return sum(copy.is_open for copy in self.copies.values())


@dataclass(frozen=True, slots=True)
class Wrong:
    """Which tables are wrong, and what is known of them."""

    only: Collection[TableKey] | None  # None: all
    after_lsn: Lsn = INVALID_LSN  # so much is delivered before they are copied
    never_were: bool = False  # those that are gone: their rows are no table's that ever was
    unknown_too: bool = False  # also those that are there and nobody knows of

    def has(self, key: TableKey) -> bool:
        """Tell if a table that is known is wrong."""
        return self.only is None or key in self.only


def by_seed(config: Config, store: StateStore, before: StateView, seed: Seed, snapshot: str) -> Resumption:
    """Write the seed's base; return what goes on there."""
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


def set_right(store: StateStore, view: StateView, at: Resumption, selection: Selection, wrong: Wrong) -> Tables:
    """Return what becomes of the tables that are `wrong`, by the catalogs there and by what was told of them last."""
    latest = {(database, relation.oid): relation for _, (database, relation) in sorted(store.relations().items())}
    items: list[Reported] = []
    copies: dict[TableKey, CopyProgress] = {}
    gone: list[TableKey] = []
    unknown = set(_tables_of(at)) - view.copies.keys() if wrong.unknown_too else set()
    for key in sorted(view.copies.keys() | latest.keys() | unknown):
        if not wrong.has(key) and key not in unknown:
            continue
        mirror = at.mirrors.get(key[0])
        now = mirror.relation(key[1]) if mirror is not None else None
        copy, reported = view.copies.get(key), latest.get(key)
        shown = under_own_name(now, selection.root_of) if now is not None else None
        if now is None:
            if copy is not None:
                gone.append(key)
            if copy is not None and reported is not None:
                items += _dropped(at, key, reported, copy, never_was=wrong.never_were)
        elif copy is None:
            if shown is not None and _is_copied(shown, selection):
                items.append(_schema_event(at, key[0], SchemaChange.CREATE, None, shown))
                copies[key] = CopyProgress(CopyPhase.WAITING, 0, after_lsn=wrong.after_lsn)
        elif copy.phase is CopyPhase.LEFT and not (shown is not None and _is_copied(shown, selection)):
            copies[key] = copy.blind()  # one that is selected there has left it by what is given up
        elif shown is not None and reported is not None and reported != shown:
            generation = copy.generation + 1
            items.append(CopyBoundary(at.place(), key[0], shown, generation, True, ""))
            copies[key] = CopyProgress(
                CopyPhase.COPYING, generation, lx=at.place().commit_lsn, after_lsn=wrong.after_lsn
            )
        else:
            # NB: without the old snapshot: it may have seen what never happened, by xids that are given out again.
            copies[key] = replace(copy.blind(), phase=CopyPhase.WAITING, after_lsn=wrong.after_lsn)
    return Tables(items, copies, gone)


def left_wrong(view: StateView, wrong: Wrong) -> Tables:
    """Return the copies that are `wrong`, left as they are, but that they hide nothing of the stream any more."""
    return Tables(copies={key: copy.blind() for key, copy in view.copies.items() if wrong.has(key)})


def go_on(
    config: Config,
    store: StateStore,
    before: StateView,
    at: Resumption,
    owner: Owner,
    *,
    tables: Tables,
    messages: Iterable[Message],
    note: Callable[[StateTransaction], None],
) -> None:
    """Move the delivered pointer to `at` under a new epoch of `owner`, and tell; `note`: what else is put there.

    Where delivering goes on behind what was given out last, the pointer stays.

    Raise `Fenced`, with nothing written, where the state is not as it was seen `before`.
    """
    store.learn_versions()
    reported = _group(config, at, [*_messages(at, messages), *tables.items])
    group = replace(reported, moves_delivered=at.after is None)
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
        transaction.take_epoch(owner)
        for key, progress in tables.copies.items():
            transaction.put_copy(*key, progress)
        for key in tables.gone:
            transaction.drop_copy(*key)
        if config.copy.enabled and at.beginning is not None:
            transaction.put(FINGERPRINT, Fingerprint())  # so that planning looks at every table there is
        note(transaction)


def _tables_of(at: Resumption) -> Iterator[TableKey]:
    """Give the tables of the captured databases."""
    for database in at.mirrors.keys() & set(at.databases):
        yield from ((database, relation.oid) for relation in at.mirrors[database].relations())


def _is_copied(relation: Relation, selection: Selection) -> bool:
    return (relation.kind == COPIED_KIND or relation.gathers_partitions) and selection.selects(relation)


def _dropped(
    at: Resumption, key: TableKey, reported: Relation, copy: CopyProgress, *, never_was: bool
) -> Iterator[SchemaEvent | CopyBoundary]:
    """Tell of a table that is gone; one that never was is emptied first, as its OID may be given to another."""
    if never_was:
        for is_begin in (True, False):
            yield CopyBoundary(at.place(), key[0], reported, copy.generation + 1, is_begin, "")
    yield _schema_event(at, key[0], SchemaChange.DROP, reported, None)


def _schema_event(
    at: Resumption, database: Oid, change: SchemaChange, before: Relation | None, after: Relation | None
) -> SchemaEvent:
    place = at.place()
    return SchemaEvent(
        position=place,
        lsn=place.commit_lsn,
        database=database,
        xid=Xid(0),
        change=change,
        effect=SchemaEffect.METADATA,
        before=before,
        after=after,
    )


def _messages(at: Resumption, messages: Iterable[Message]) -> Iterator[LogicalMessage]:
    """Give the messages that a reader of each database's log finds."""
    place = at.place()
    for prefix, content in messages:
        for database in sorted(at.databases):
            yield LogicalMessage(
                position=place,
                lsn=place.commit_lsn,
                database=database,
                xid=Xid(0),
                transactional=False,
                prefix=prefix,
                content=json.dumps(content).encode(),
            )


def _group(config: Config, at: Resumption, items: Iterable[Reported]) -> EncodedGroup:
    """Return the group that moves the delivered pointer; a consumer of one's own gets no items by it."""
    placed: list[GroupItem] = []
    if config.deliver.consumer == "outbox":
        placed += [replace(item, position=at.place(ordinal)) for ordinal, item in enumerate(items)]
    last = Pointer(at.place(max(0, len(placed) - 1)), at.restart_lsn)
    return encode_group(ChangeGroup(at.place(), last, placed, (), 0, 0))
