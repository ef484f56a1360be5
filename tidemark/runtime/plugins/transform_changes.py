"""Announces in the stream that the transforms of a table are not those by which it was delivered before.

A start may have another list of transforms, or a mask another key. The first group with a change of such a table then
begins with a schema event of it, `SchemaEffect.TRANSFORMS`, before and after which the table has one version: what
follows has another form than what came before. The event and the record in the state that it was delivered are in
one transaction, or, for a custom consumer, in the one that stores its confirmation.

A new table, and a table that is copied, have no rows of another form, so nothing is announced.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tidemark.io.state.state import StateStore
from tidemark.io.state.state_transaction import StateTransaction
from tidemark.io.state.state_views import StateView
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
from tidemark.model.lsn import INVALID_LSN, Lsn, Oid, Xid
from tidemark.model.position import Epoch, Position
from tidemark.model.relation import Relation
from tidemark.runtime.plugins.group_transforms import GroupTransforms
from tidemark.transforms.identity import UNKNOWN, is_same
from tidemark.transforms.transform import BadTransform
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.items import relation_of
from tidemark.wire.keys import parse_table, table_text
from tidemark.wire.recopies import TableKey
from tidemark.wire.state.key import DamagePolicy
from tidemark.wire.state.state_keys import TRANSFORMED
from tidemark.wire.state.transformed_tables import TransformedTables

NO_TRANSFORMS = ""
PENDING_MAX = 4096  # events whose delivery is not recorded; for more, a table may be announced twice
EventPlace = tuple[TableKey, Position]


class TransformChanges:
    """The tables whose transforms changed before this start. `announced` and `record` may be called by two threads."""

    def __init__(
        self,
        transforms: GroupTransforms,
        delivered_by: Mapping[TableKey, str],
        *,
        delivered_lsn: Lsn,
        selects: Callable[[Relation], bool],
    ) -> None:
        """`delivered_by`: the identities by which tables were delivered; none for a table without transforms.

        delivered_lsn: the commit LSN of the last delivered change. selects: whether a version is delivered.
        """
        self._transforms = transforms
        self._delivered_by = delivered_by
        self._delivered_lsn = delivered_lsn
        self._selects = selects
        self._current: dict[TableKey, str] = {}  # of the tables that came since the start
        self._pending: OrderedDict[EventPlace, str] = OrderedDict()

    @classmethod
    def since(
        cls,
        store: StateStore,
        epoch: Epoch,
        transforms: GroupTransforms,
        tables: Iterable[tuple[Oid, Relation]],
        selects: Callable[[Relation], bool],
        *,
        follows: bool = False,
    ) -> "TransformChanges | None":
        """Compare with the state; None if nothing was delivered by transforms, and there are none.

        tables: those that are selected at the start. A state that has no record yet gets one of them: of a new one, and
        of one that `follows` a deliverer with the same list, the present transforms. Otherwise it is unknown by which
        ones these tables were delivered, and each is announced: if there are transforms, and if there was a record that
        is lost, since the former list may have had some.
        """
        with store.reading() as transaction:
            recorded = _recorded(transaction)
            is_lost = recorded is None and _is_lost(transaction)
        if recorded is None:
            identity_of = partial(_identity_of, transforms) if follows else transforms.identity
            may_differ = is_lost or transforms.plans is not None
            is_unknown = may_differ and not follows and _has_delivered(store.view())
            recorded = {
                (database, table.oid): identity
                for database, table in tables
                if (identity := UNKNOWN if is_unknown else identity_of(database, table))
            }
            with store.transaction(epoch) as transaction:
                transaction.put(TRANSFORMED, _stored(recorded))
        if not recorded and transforms.plans is None:
            return None
        start = store.marks().start
        delivered_lsn = INVALID_LSN if start is None else start.position.commit_lsn
        return cls(transforms, recorded, delivered_lsn=delivered_lsn, selects=selects)

    def announced(self, group: ChangeGroup) -> ChangeGroup:
        """Return a group of the stream with an event for each of its tables whose transforms changed.

        A group that continues a transaction has no place for them: they come with the next one.
        """
        begins_transaction = group.first.commit_lsn > self._delivered_lsn
        self._delivered_lsn = group.last.position.commit_lsn
        changed = self._changed(group) if begins_transaction else []
        events = [_event(group, number, *table) for number, table in enumerate(changed)]
        for event in events:
            self._note(event, self._current[_key(event)])
        self.noted(group)
        return replace(group, items=[*events, *group.items]) if events else group

    def noted(self, group: ChangeGroup) -> ChangeGroup:
        """Note the tables of a group that are new, changed by DDL, or copied from the beginning; return the group."""
        self._transforms.learn(group)
        for item in group.items:
            if isinstance(item, SchemaEvent | CopyBoundary) and not self._transforms.is_transformed(item):
                relation = relation_of(item)
                assert relation is not None, item
                if self._is_new(item) or _key(item) in self._current:
                    self._current[_key(item)] = self._identity(item.database, relation)
                    self._note(item, self._current[_key(item)])
                if isinstance(item, SchemaEvent) and item.after is None:
                    self._current.pop(_key(item), None)
        return group

    def record(self, transaction: StateTransaction, groups: Sequence[ChangeGroup]) -> None:
        """Record in an open transaction by which transforms the tables of groups are delivered from now on."""
        events = [item for group in groups for item in group.items if isinstance(item, SchemaEvent | CopyBoundary)]
        if not events:
            return
        before = _recorded(transaction)
        after = dict(self._delivered_by if before is None else before)
        for event in events:
            key = _key(event)
            if isinstance(event, SchemaEvent) and event.after is None:
                after.pop(key, None)
                continue
            identity = self._pending.get((key, event.position))
            if identity is not None:  # else its table is announced later, or again
                after[key] = identity
        after = {key: identity for key, identity in after.items() if identity}
        if after != before:
            transaction.put(TRANSFORMED, _stored(after))

    def _changed(self, group: ChangeGroup) -> Sequence[tuple[Oid, Relation]]:
        """Return the tables with rows of another form, as they are before the group."""
        self._transforms.learn(group)
        changed: list[tuple[Oid, Relation]] = []
        new: set[TableKey] = set()
        for item in group.items:
            if isinstance(item, LogicalMessage) or self._transforms.is_transformed(item):
                continue
            key, described = _key(item), _described_before(item)
            if self._is_new(item):
                new.add(key)
            if described is None or key in new or key in self._current:
                continue
            self._current[key] = self._identity(item.database, described)
            if not is_same(self._current[key], self._delivered_by.get(key, NO_TRANSFORMS)):
                changed.append((item.database, described))
        return changed

    def _is_new(self, item: GroupItem) -> bool:
        """Return whether the table of an item has no rows from before that were delivered."""
        if isinstance(item, SchemaEvent):
            return item.before is None or not self._selects(item.before)
        return isinstance(item, CopyBoundary)

    def _note(self, event: SchemaEvent | CopyBoundary, identity: str) -> None:
        """Keep the identity from an event on until its delivery is recorded: another event may follow before."""
        self._pending[_key(event), event.position] = identity
        if len(self._pending) > PENDING_MAX:
            self._pending.popitem(last=False)

    def _identity(self, database: Oid, relation: Relation) -> str:
        return _identity_of(self._transforms, database, relation)


def _identity_of(transforms: GroupTransforms, database: Oid, relation: Relation) -> str:
    """Return the identity of the transforms of a version; none if they do not fit, since it is not delivered so."""
    try:
        return transforms.identity(database, relation)
    except BadTransform:  # of a former version: the list was corrected for the one that follows
        return NO_TRANSFORMS


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
    """Return the event of a table, at a position before all changes of the group: records begin at multiples of 8."""
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
    """Return the recorded identities; None: there are none yet, or they are lost."""
    if _is_lost(transaction) or (stored := transaction.get(TRANSFORMED)) is None:
        return None
    return {parse_table(name): identity for name, identity in stored.identities.items()}


def _is_lost(transaction: StateTransaction) -> bool:
    """Return whether the record is damaged, or was that of the state that this one replaces."""
    try:
        stored = transaction.get(TRANSFORMED)
    except DamagedValue:
        assert TRANSFORMED.policy is DamagePolicy.FORGET
        return True
    return stored is not None and stored.is_lost


def _has_delivered(view: StateView) -> bool:
    """Return whether anything was delivered behind the start of the state."""
    if view.delivered is None or view.beginning is None:
        return False
    return view.delivered.pointer.position.commit_lsn >= view.beginning.lsn


def _stored(identities: Mapping[TableKey, str]) -> TransformedTables:
    return TransformedTables({table_text(*key): identity for key, identity in identities.items()})
