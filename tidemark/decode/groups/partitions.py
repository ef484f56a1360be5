"""Delivers changes of partitions under the name of a partitioned table above them (P23).

A row of a partition gets the columns of the table above, matched by name, and the system column `tableoid`, which names
its partition. `tableoid` is part of the key: partitions can have keys that are unique only within one partition, and a
row that moves is a delete in one and an insert in the other. An operation on a whole partition, such as TRUNCATE or
DETACH, affects the rows with its `tableoid`.

The route is decided for each version of the partition, which includes the versions of the tables above it: names and
columns are those at the change's record.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from tidemark.decode.transactions.schema_changes import differ, logical_description
from tidemark.decode.transactions.version_cache import VersionCache
from tidemark.decode.types.codec import Dialect
from tidemark.decode.types.registry import arrow_struct
from tidemark.model.change import (
    AFTER,
    BEFORE,
    ChangeBatch,
    PartitionChange,
    PartitionEvent,
    RewriteBoundary,
    SchemaChange,
    SchemaEvent,
    Truncation,
    batch_schema,
)
from tidemark.model.lsn import Oid
from tidemark.model.relation import TABLEOID_NUMBER, Align, Column, Relation, TypeDescription, TypeKind

REPORTED_MAX = 65_536  # roots whose last reported version is kept
ROUTED_KIND = "p"  # pg_class.relkind of partitioned tables, which have no rows
_COPIED_KIND = "r"  # of tables with rows
_OID = TypeDescription(
    oid=Oid(26),
    namespace="pg_catalog",
    name="oid",
    display_name="oid",
    kind=TypeKind.BASE,
    length=4,
    by_value=True,
    align=Align.INT,
)
_TABLEOID = Column(
    number=TABLEOID_NUMBER,
    name="tableoid",
    type=_OID,
    typmod=-1,
    length=4,
    by_value=True,
    align=Align.INT,
    not_null=True,
)

RootOf = Callable[[Sequence[Relation]], Relation | None]
"""From a relation and those above it, nearest first, returns the one whose name changes get; None: their own."""
RelationItem = SchemaEvent | RewriteBoundary | Truncation
RoutedItem = RelationItem | PartitionEvent


def by_leaf(_lineage: Sequence[Relation]) -> None:
    """Keep all changes under the names of their own tables."""


def lineage(relation: Relation) -> tuple[Relation, ...]:
    """Return the tables whose name changes of `relation` can get: itself if it is partitioned, and its ancestors."""
    return (relation, *relation.ancestors) if relation.kind == ROUTED_KIND else relation.ancestors


def as_target(root: Relation, of: Relation | None = None, *, constants: bool = False) -> Relation:
    """Return the version of `root` that rows of the partition `of` get; without `of`, the root's own version.

    The key is the partition's, since old rows contain it. With `constants`, so are the missing values of new columns.
    """
    of = of or root
    names = {column.number: column.name for column in of.live_columns}
    numbers = {column.name: column.number for column in root.live_columns}
    missing = {column.name: column.missing for column in of.live_columns} if constants else {}
    columns = tuple(replace(column, missing=missing.get(column.name)) for column in root.columns)

    def key(of_partition: tuple[int, ...]) -> tuple[int, ...]:
        return (*(numbers[names[number]] for number in of_partition), TABLEOID_NUMBER) if of_partition else ()

    return replace(
        root,
        columns=(*columns, _TABLEOID),
        replica_identity=of.replica_identity,
        identity_columns=key(of.identity_columns),
        primary_key=key(of.primary_key),
        ancestors=(),
    )


@dataclass(frozen=True, slots=True)
class _PartitionRoute:
    """The target of one version's rows, and the index of each target column in them."""

    target: Relation
    indexes: tuple[int, ...]
    struct: pa.StructType
    schema: pa.Schema


class PartitionRoutes:
    """Converts batches and events of partitions to those of the table above."""

    def __init__(self, dialects: Mapping[Oid, Dialect], root_of: RootOf) -> None:
        self._dialects = dialects
        self._root_of = root_of
        self._targets: VersionCache[Relation, Relation] = VersionCache()
        self._routes: VersionCache[Relation, _PartitionRoute] = VersionCache()
        self._reported: dict[tuple[Oid, Oid], Relation | None] = {}  # the last reported version of a table, by its OID

    def root(self, relation: Relation) -> Relation | None:
        """Return the table whose name changes of `relation` get, possibly itself; None: not routed, its own name."""
        candidates = lineage(relation)
        return self._root_of(candidates) if candidates else None

    def target(self, relation: Relation) -> Relation:
        """Return the version under which rows of `relation` are delivered."""
        target = self._targets.get(relation)
        if target is None:
            root = self.root(relation)
            target = as_target(root, relation) if root is not None else alone(relation)
            self._targets.keep(relation, target)
        return target

    def batches(self, made: Iterable[ChangeBatch]) -> list[ChangeBatch]:
        """Return the batches as they are delivered."""
        return [
            self._routed(batch) if self.target(batch.relation).has_partition_rows else self._alone(batch)
            for batch in made
        ]

    def _alone(self, batch: ChangeBatch) -> ChangeBatch:
        return replace(batch, relation=self.target(batch.relation)) if batch.relation.ancestors else batch

    def _routed(self, batch: ChangeBatch) -> ChangeBatch:
        route = self._route(batch)
        columns, rows = [], batch.rows
        for field, values in zip(rows.schema, rows.columns, strict=True):
            if field.name in (BEFORE, AFTER):
                columns.append(_struct(values, route, batch.relation.oid))
            elif field.name == "_unchanged":
                columns.append(_moved_bits(values, route.indexes))
            else:
                columns.append(values)
        return ChangeBatch(batch.database, route.target, pa.RecordBatch.from_arrays(columns, schema=route.schema))

    def _route(self, batch: ChangeBatch) -> _PartitionRoute:
        route = self._routes.get(batch.relation)
        if route is None:
            target = self.target(batch.relation)
            index_of = {column.name: index for index, column in enumerate(batch.relation.live_columns)}
            indexes = tuple(index_of[column.name] for column in target.live_columns[:-1])
            struct = arrow_struct(target.live_columns, self._dialects[batch.database])
            route = self._routes.keep(batch.relation, _PartitionRoute(target, indexes, struct, batch_schema(struct)))
        return route

    # Events

    def items(self, item: RelationItem) -> Iterator[RoutedItem]:
        """Yield the events that result from `item`: none, the same one, or one for each affected table."""
        if isinstance(item, SchemaEvent):
            described = item.after or item.before
            assert described is not None, "one of both descriptions exists"
            yield from self._of_table(item) if described.kind == ROUTED_KIND else self._of_leaf(item)
            return
        root = self.root(item.relation)
        if root is None:
            yield replace(item, relation=alone(item.relation))
        elif item.relation.kind != ROUTED_KIND:
            yield replace(item, relation=self.target(item.relation), partition=item.relation.oid)
        elif root.oid == item.relation.oid:
            yield replace(item, relation=as_target(root))

    def _of_table(self, event: SchemaEvent) -> Iterator[RoutedItem]:
        """Yield the events of a partitioned table; one below another partitioned table has none."""
        before, after = self._own(event.before), self._own(event.after)
        described = after or before
        if described is None:
            return
        if not described.has_partition_rows:
            self._reported.pop((event.database, described.oid), None)  # it may become a root again
        elif not self._is_new_version(event.database, described.oid, after):
            return
        yield from _changed(event, before, after)

    def _own(self, relation: Relation | None) -> Relation | None:
        """Return the version of a partitioned table under its own name, or None."""
        return under_own_name(relation, self._root_of) if relation is not None else None

    def _of_leaf(self, event: SchemaEvent) -> Iterator[RoutedItem]:
        before, after = event.before, event.after
        was = self.root(before) if before is not None else None
        now = self.root(after) if after is not None else None
        left = was is not None and (now is None or now.oid != was.oid)
        came = now is not None and (was is None or now.oid != was.oid)
        own_before = alone(before) if before is not None and was is None else None
        own_after = alone(after) if after is not None and now is None else None
        yield from _changed(replace(event, brings_rows=left and own_after is not None), own_before, own_after)
        if left:
            assert was is not None, "the earlier parent is known"
            assert before is not None, "the earlier description is known"
            if self._reported.get((event.database, was.oid), was) is not None:
                change = PartitionChange.DROP if after is None else PartitionChange.DETACH
                yield _partition_event(event, change, as_target(was), before)
        if came:
            assert now is not None, "the new parent is known"
            assert after is not None, "the new description is known"
            change = PartitionChange.CREATE if before is None else PartitionChange.ATTACH
            yield _partition_event(event, change, as_target(now), after)
        elif now is not None and was is not None:
            yield from self._of_root(event, was, now)

    def _of_root(self, event: SchemaEvent, was: Relation, now: Relation) -> Iterator[RoutedItem]:
        """Report a change of the table above with its first partition, whose version shows what the rows became."""
        assert event.after is not None, "the new description is known"
        if differ(was, now) and self._is_new_version(event.database, now.oid, as_target(now)):
            yield replace(event, before=as_target(was), after=as_target(now, event.after, constants=True))

    def _is_new_version(self, database: Oid, oid: Oid, version: Relation | None) -> bool:
        """Return whether this version of a table was not reported yet; record it."""
        key = (database, oid)
        shown = logical_description(version) if version is not None else None
        shown = replace(shown, identity_columns=(), primary_key=()) if shown is not None else None
        if key in self._reported and self._reported[key] == shown:
            return False
        if len(self._reported) >= REPORTED_MAX:
            self._reported.clear()
        self._reported[key] = shown
        return True


def under_own_name(relation: Relation, root_of: RootOf) -> Relation | None:
    """Return a version as delivered under its own name; None if its changes have another table's name."""
    candidates = lineage(relation)
    root = root_of(candidates) if candidates else None
    if root is None:
        return alone(relation)
    return as_target(relation) if root.oid == relation.oid else None


def own_version(relation: Relation, root_of: RootOf) -> Relation:
    """Return a version of a table that was delivered under its own name, whatever name its changes have now."""
    own = under_own_name(relation, root_of) or alone(relation)
    return as_target(own) if own.kind == ROUTED_KIND and not own.has_partition_rows else own


def has_rows(relation: Relation) -> bool:
    """Return whether rows are delivered with this version: with that of a partitioned table only if it is a root."""
    return relation.kind == _COPIED_KIND or relation.has_partition_rows


def alone(relation: Relation) -> Relation:
    """Return a version as delivered under its own name."""
    return replace(relation, ancestors=()) if relation.ancestors else relation


def _changed(event: SchemaEvent, before: Relation | None, after: Relation | None) -> Iterator[SchemaEvent]:
    """Yield the event with the visible versions; none if nothing visible changed."""
    if (before is None and after is None) or (before is not None and after is not None and not differ(before, after)):
        return
    change = event.change
    if before is None:
        change = SchemaChange.CREATE
    elif after is None:
        change = SchemaChange.DROP
    still_exists = event.still_exists or (after is None and event.after is not None)
    yield replace(event, change=change, before=before, after=after, still_exists=still_exists)


def _partition_event(
    event: SchemaEvent, change: PartitionChange, target: Relation, partition: Relation
) -> PartitionEvent:
    return PartitionEvent(
        event.position,
        event.lsn,
        event.database,
        event.xid,
        change,
        target,
        alone(partition),
        commit_time_us=event.commit_time_us,
    )


def _struct(values: pa.StructArray, route: _PartitionRoute, partition: Oid) -> pa.StructArray:
    """Return rows of a partition as rows of the table above it."""
    count = len(values)
    if values.null_count == count:
        return pa.nulls(count, route.struct)
    last = route.struct.field(route.struct.num_fields - 1).type
    children = [
        *(values.field(index) for index in route.indexes),
        pa.repeat(pa.scalar(int(partition), last), count),
    ]
    return pa.StructArray.from_arrays(children, fields=list(route.struct), mask=values.is_null())


def _moved_bits(bitmaps: pa.Array, indexes: Sequence[int]) -> pa.Array:
    """Return bitmaps over a partition's columns as bitmaps over the columns of the table above it."""
    if bitmaps.null_count == len(bitmaps):
        return bitmaps
    coded = bitmaps.dictionary_encode()
    size = (len(indexes) >> 3) + 1
    moved = []
    for bitmap in coded.dictionary.to_pylist():
        bits = int.from_bytes(bitmap, "little")
        number = sum((bits >> index & 1) << at for at, index in enumerate(indexes))
        moved.append(number.to_bytes(size, "little"))
    return pa.array(moved, bitmaps.type).take(coded.indices)
