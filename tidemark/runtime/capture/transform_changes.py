"""Announces in the stream that the transforms of a table are not those by which it was delivered before.

A start may have another list of transforms, or a mask another key. The first group with a change of such a table then
begins with a schema event of it, `SchemaEffect.TRANSFORMS`, before and after which the table has one version: what
comes behind has another form than what came before. The event and the record in the state that it was delivered are in
one transaction, or, for a custom consumer, in the one that stores its confirmation.

A new table, and a table that is copied, have no rows of another form, so nothing is announced.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from tidemark.io.state.state import StateStore
from tidemark.io.state.state_transaction import StateTransaction
from tidemark.model.change import (
    ChangeBatch,
    ChangeGroup,
    CopyBoundary,
    GroupEvent,
    GroupItem,
    LogicalMessage,
    SchemaChange,
    SchemaEffect,
    SchemaEvent,
)
from tidemark.model.lsn import Lsn, Oid, Xid
from tidemark.model.position import Epoch, Position
from tidemark.model.relation import Relation
from tidemark.runtime.capture.delivery import CopyKeep, Target
from tidemark.runtime.plugins.group_transforms import GroupTransforms
from tidemark.transforms.transform import BadTransform
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.items import relation_of
from tidemark.wire.recopies import TableKey
from tidemark.wire.state.key import DamagePolicy
from tidemark.wire.state.state_keys import TRANSFORMED
from tidemark.wire.state.transformed_tables import TransformedTables

IdentityOf = Callable[[Oid, Relation], str]  # of the transforms of a version of a table; it raises `BadTransform`
NO_TRANSFORMS = ""


class TransformChanges:
    """The tables whose transforms changed before this start. `announced` and `record` may be called by two threads."""

    def __init__(self, identity_of: IdentityOf, delivered_by: dict[TableKey, str]) -> None:
        """`delivered_by`: the identities by which tables were delivered; none for a table without transforms."""
        self._identity_of = identity_of
        self._delivered_by = delivered_by
        self._current: dict[TableKey, str] = {}  # of the tables that came since the start

    @classmethod
    def since(
        cls, store: StateStore, epoch: Epoch, transforms: GroupTransforms, tables: Iterable[tuple[Oid, Relation]]
    ) -> "TransformChanges | None":
        """Compare with the state; None if nothing was delivered by transforms, and there are none.

        tables: those that are selected at the start. A state that has no record yet gets one of them.
        """
        with store.reading() as transaction:
            recorded = _recorded(transaction)
        if recorded is None:
            present = {(database, table.oid): transforms.identity(database, table) for database, table in tables}
            recorded = {key: identity for key, identity in present.items() if identity}
            with store.transaction(epoch) as transaction:
                transaction.put(TRANSFORMED, _stored(recorded))
        return cls(transforms.identity, recorded) if recorded or transforms.plans is not None else None

    def announced(self, group: ChangeGroup) -> ChangeGroup:
        """Return a group with an event for each of its tables whose transforms changed."""
        changed: list[tuple[Oid, Relation]] = []
        for item in group.items:
            if isinstance(item, LogicalMessage):
                continue
            described = _described_before(item)
            key = _key(item)
            if described is not None and key not in self._current:
                identity = self._identity(item.database, described)
                self._current[key] = identity
                if identity != self._delivered_by.get(key, NO_TRANSFORMS):
                    changed.append((item.database, described))
            if isinstance(item, SchemaEvent | CopyBoundary):
                relation = relation_of(item)
                assert relation is not None, item
                self._current[key] = self._identity(item.database, relation)
        events = [_event(group, number, *table) for number, table in enumerate(changed)]
        return replace(group, items=[*events, *group.items]) if events else group

    def record(self, transaction: StateTransaction, groups: Sequence[ChangeGroup]) -> None:
        """Record in an open transaction by which transforms the tables of groups are delivered from now on."""
        found = {
            _key(item): item for group in groups for item in group.items if isinstance(item, SchemaEvent | CopyBoundary)
        }
        if not found:
            return
        before = _recorded(transaction) or {}
        after = dict(before)
        for key, item in found.items():
            is_dropped = isinstance(item, SchemaEvent) and item.after is None
            after[key] = NO_TRANSFORMS if is_dropped else self._current[key]
        after = {key: identity for key, identity in after.items() if identity}
        if after != before:
            transaction.put(TRANSFORMED, _stored(after))

    def _identity(self, database: Oid, relation: Relation) -> str:
        try:
            return self._identity_of(database, relation)
        except BadTransform:  # of a former version: the list was corrected for the one that follows
            return NO_TRANSFORMS


class AnnouncingTarget:
    """Implements `Target` of `tidemark.runtime.capture.delivery` in front of another one."""

    def __init__(self, target: Target, changes: TransformChanges) -> None:
        self.counts = target.counts
        self.begin = target.begin
        self.idle = target.idle
        self.drain = target.drain
        self.close = target.close
        self.abandon = target.abandon
        self._target = target
        self._changes = changes

    def deliver(self, group: ChangeGroup) -> None:
        """Deliver a group with the events that it needs."""
        self._target.deliver(self._changes.announced(group))

    def deliver_copied(self, group: ChangeGroup, progress: CopyKeep) -> None:
        """Deliver a group of a first copy, of whose table nothing needs to be announced."""
        self._target.deliver_copied(self._changes.announced(group), progress)


def _key(item: ChangeBatch | GroupEvent) -> TableKey:
    relation = relation_of(item)
    assert relation is not None, item
    assert not isinstance(item, LogicalMessage), item
    return item.database, relation.oid


def _described_before(item: GroupItem) -> Relation | None:
    """Return the version of the table before an item; None if it has no rows from before."""
    if isinstance(item, SchemaEvent):
        return item.before
    return None if isinstance(item, CopyBoundary) else relation_of(item)


def _event(group: ChangeGroup, number: int, database: Oid, relation: Relation) -> SchemaEvent:
    """Return the event of a table, at a position before all changes of the group: records begin at multiples of 8.

    Of a transaction that was delivered in part before the start, it stands before the whole.
    """
    position = Position(group.first.timeline, Lsn(group.first.commit_lsn - 1), number)
    return SchemaEvent(
        position=position,
        lsn=position.commit_lsn,
        database=database,
        xid=Xid(0),
        change=SchemaChange.ALTER,
        effect=SchemaEffect.TRANSFORMS,
        before=relation,
        after=relation,
    )


def _recorded(transaction: StateTransaction) -> dict[TableKey, str] | None:
    """Return the recorded identities; damaged: None, as in a state that has none yet."""
    try:
        stored = transaction.get(TRANSFORMED)
    except DamagedValue:
        assert TRANSFORMED.policy is DamagePolicy.FORGET
        return None
    if stored is None:
        return None
    found: dict[TableKey, str] = {}
    for name, identity in stored.identities.items():
        database, relation = name.split("/")
        found[Oid(int(database)), Oid(int(relation))] = identity
    return found


def _stored(identities: Mapping[TableKey, str]) -> TransformedTables:
    return TransformedTables({f"{database}/{relation}": each for (database, relation), each in identities.items()})
