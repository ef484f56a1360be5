"""Transforms on the groups of a stream, before a consumer: rows, and the versions of tables in events.

Messages of applications (`LogicalMessage`) have no columns and remain as they are. A group keeps its position, so what
is filtered out is delivered, and confirmed, like others.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from tidemark.decode.types.codec import Dialect
from tidemark.decode.types.registry import arrow_struct
from tidemark.engine.pool.batch import Batch
from tidemark.model.change import (
    ChangeBatch,
    ChangeGroup,
    EngineEvent,
    GroupItem,
    LogicalMessage,
    PartitionEvent,
    SchemaEvent,
)
from tidemark.model.lsn import Oid
from tidemark.model.mapping import TypeMapping
from tidemark.model.position import Epoch
from tidemark.model.relation import Relation
from tidemark.transforms.plan import PLANS_MAX, TransformPlan, TransformPlans
from tidemark.transforms.source_form import event_without_constants, transformed_relation, without_constants
from tidemark.transforms.transform import BadTransform, Transform, TransformFailed, TransformRaised

NOT_LEFT: Mapping[tuple[Oid, Oid], Relation] = MappingProxyType({})


class GroupTransforms:
    """The transforms of a capture, bound to the versions of its tables. For one thread."""

    def __init__(
        self,
        transforms: Sequence[Transform],
        types: TypeMapping,
        epoch: Epoch,
        databases: Mapping[Oid, str],
        plans: TransformPlans | None = None,
        *,
        left: Mapping[tuple[Oid, Oid], Relation] = NOT_LEFT,
    ) -> None:
        """`databases`: the known names. `plans`: of the same transforms and types, if they are bound already.

        `left`: tables that have left the selection, as the transforms have left them. Their DROP has this version.
        """
        self._has_transforms = bool(transforms)
        self._names = ", ".join(map(str, transforms))
        self._columns_of = partial(arrow_struct, dialect=Dialect(mapping=types))
        self._plans = plans or TransformPlans(transforms, lambda relation: self._columns_of(relation.live_columns))
        self._epoch = epoch
        self._databases = dict(databases)
        self._left = left
        self._relations: dict[tuple[str, Relation], Relation] = {}

    @property
    def plans(self) -> TransformPlans | None:
        """The plans, for a consumer that applies them in its own threads; None: there are no transforms."""
        return self._plans if self._has_transforms else None

    def check(self, tables: Iterable[tuple[Oid, Relation]], *, keeps_tables: bool) -> None:
        """Check that the transforms fit these tables, by database; raise `BadTransform`.

        keeps_tables: the consumer takes rows only in the form of tables, as the outbox does.
        """
        for database, relation in tables:
            name = self._database(database)
            plan = self._plans.plan(name, relation)
            if keeps_tables:
                self._transformed(name, plan)

    def unmatched(self) -> list[tuple[Transform, str]]:
        """Return the patterns of transforms that no table seen so far has (`TransformPlans.unmatched`)."""
        return self._plans.unmatched()

    def identity(self, database: Oid, relation: Relation) -> str:
        """Return the identity of the transforms of a version of a table; "": none matches. Raise `BadTransform`."""
        return self._plans.plan(self._database(database), relation).identity if self._has_transforms else ""

    def learn(self, group: ChangeGroup) -> None:
        """Learn the names of databases that are new in a group."""
        self._databases.update({oid: known.name for oid, known in group.databases.items()})

    def check_event(self, event: SchemaEvent) -> None:
        """Check that the transforms fit a new version of a table; raise `BadTransform`."""
        database, before, after = self._database(event.database), event.before, event.after
        if after is not None and before is not None:
            self._plans.check_change(database, before, after)
        elif after is not None:
            self._plans.plan(database, after)

    def event(self, event: EngineEvent) -> EngineEvent:
        """Return an event for a consumer that gets the versions of tables in the source: without constants."""
        return event_without_constants(event) if self._has_transforms else event

    def batches(self, item: ChangeBatch) -> Sequence[Batch]:
        """Return the batches that the rows of an item become; without rows, none."""
        database = self._database(item.database)
        plan = self._plans.plan(database, item.relation)
        relation = without_constants(item.relation) if self._has_transforms else item.relation
        batch = Batch.of(database, relation, self._epoch, item.rows, item.database)
        try:
            return [each for each in plan.apply(batch) if len(each)]
        except TransformRaised as error:  # final: no pool calls it again
            raise TransformFailed(str(error)) from None

    def apply(self, group: ChangeGroup) -> ChangeGroup:
        """Return a group in which rows and versions of tables are transformed."""
        self.learn(group)
        items = [transformed for item in group.items for transformed in self._items(item)]
        rows = sum(item.rows.num_rows for item in items if isinstance(item, ChangeBatch))
        return replace(group, items=items, row_count=rows)

    def _items(self, item: GroupItem) -> Iterator[GroupItem]:
        if isinstance(item, LogicalMessage):
            yield item
        elif isinstance(item, ChangeBatch):
            yield from self._rows(item)
        elif isinstance(item, SchemaEvent):
            self.check_event(item)
            after = None if item.after is None else self.version(item.database, item.after)
            yield replace(item, before=self._version_before(item), after=after)
        elif isinstance(item, PartitionEvent):
            # NB: no transform has to match the partition, whose rows have the name of its table.
            partition = without_constants(self.version(item.database, item.partition))
            yield replace(item, relation=self.version(item.database, item.relation), partition=partition)
        else:
            yield replace(item, relation=self.version(item.database, item.relation))

    def _rows(self, item: ChangeBatch) -> Iterator[ChangeBatch]:
        database = self._database(item.database)
        plan = self._plans.plan(database, item.relation)
        if not plan.steps:
            yield item
            return
        relation = self._transformed(database, plan)
        for batch in self.batches(item):
            if batch.table != relation.qualified_name:
                raise TransformFailed(
                    f"{self._names}: rows of {relation.qualified_name} were returned for another table"
                )
            yield ChangeBatch(item.database, relation, batch.arrow)

    def _version_before(self, event: SchemaEvent) -> Relation | None:
        """Return the former version; one that the transforms do not fit has no values that may be shown."""
        if event.before is None:
            return None
        if self.is_transformed(event):
            return without_constants(event.before)  # NB: a follower had stored the version of the source
        try:
            return self.version(event.database, event.before)
        except BadTransform:  # the list of transforms was corrected for the new version
            return without_constants(event.before)

    def is_transformed(self, item: GroupItem) -> bool:
        """Return whether an item has a version that the transforms made: the DROP of a table that had left."""
        if not isinstance(item, SchemaEvent) or item.before is None or item.after is not None:
            return False
        return self._left.get((item.database, item.before.oid)) == item.before

    def version(self, database: Oid, relation: Relation) -> Relation:
        """Return a version of a table after the transforms; raise `BadTransform`."""
        name = self._database(database)
        return self._transformed(name, self._plans.plan(name, relation))

    def _transformed(self, database: str, plan: TransformPlan) -> Relation:
        key = (database, plan.shape.relation)
        found = self._relations.get(key)
        if found is None:
            if len(self._relations) >= PLANS_MAX:
                self._relations.clear()
            found = self._relations[key] = transformed_relation(plan, self._columns_of)
        return found

    def _database(self, oid: Oid) -> str:
        return self._databases.get(oid, str(oid))
