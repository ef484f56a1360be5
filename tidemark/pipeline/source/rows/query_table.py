"""The table that a query names: its relations in the state, its columns, and the versions that fit them.

A relation belongs to the table by its newest name, as a partition of such a relation, or, if it came later, by its own
name: rows from before a rename, and of a table that was created again, are rows of the table. If no relation has the
name now, the one that had it before is the table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from tidemark.decode.groups.partitions import ROUTED_KIND
from tidemark.engine.selection import matches
from tidemark.model.errors import ConfigError, StateError
from tidemark.model.lsn import Oid
from tidemark.model.mapping import TypeMapping
from tidemark.model.relation import TABLEOID_NUMBER, Relation
from tidemark.pipeline.lake.layout import lake_columns, shape_of
from tidemark.wire.relations import SchemaVersion
from tidemark.wire.state.values import Beginning

RelationKey = tuple[Oid, Oid]
"""A relation by the OIDs of its database and its own."""
_Versions = dict[RelationKey, tuple[SchemaVersion, Relation]]
SchemaVersions = Mapping[SchemaVersion, tuple[Oid, Relation]]


class UnknownTable(ConfigError):
    """The state contains no relation with the name, or none that the pattern matches."""


class TablesDiffer(ConfigError):
    """Several tables match, and their columns are not the same."""

    hint = "name one table, or read all tables as values: leave out the option table (docs/spark.md)"


class SchemaChanged(StateError):
    """The table has other columns than the query."""

    hint = "start the query again: with schemaEvolution=restart it then has the new columns"


class ColumnsMixed(StateError):
    """A batch that Spark requests again was planned with other columns than those that its first rows need."""

    hint = (
        "start the query with a new checkpoint: its reader continues before this batch, of which nothing was "
        "committed, and the query ends where the columns change"
    )


class ChangesMissing(StateError):
    """The table of a query does not follow from the rows of the query: its capture ends, or begins without its rows."""

    hint = (
        "the query continues without them once it is started with schemaEvolution=ignore; while the table is selected, "
        "cdcctl table recopy sends all of its rows"
    )


@dataclass(frozen=True, slots=True)
class QueryColumn:
    """A column of the query; `number` is its pg_attribute.attnum in the relation `QueryTable.described_by`."""

    name: str
    number: int
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class QueryTable:
    """The table of a query, as it was when the query was loaded."""

    patterns: tuple[str, ...]
    databases: frozenset[str]
    members: frozenset[RelationKey]
    described_by: RelationKey  # the relation whose columns these are
    names: tuple[str, ...]  # several if the patterns match several tables
    has_own_partitions: bool  # partitions of a table, which are captured under their own names
    columns: tuple[QueryColumn, ...]
    newest: SchemaVersion  # of the state, when the query was loaded
    types: TypeMapping

    @property
    def fields(self) -> list[pa.Field]:
        """The columns in Arrow."""
        return [pa.field(column.name, column.type) for column in self.columns]

    @property
    def names_tables(self) -> bool:
        """Return whether each row names its table: it could not be assigned to one otherwise."""
        return len(self.names) > 1 or self.has_own_partitions

    @property
    def partition_column(self) -> str | None:
        """Return the name of the column `tableoid`, which the rows of a partitioned table under its own name have."""
        return next((column.name for column in self.columns if column.number == TABLEOID_NUMBER), None)

    def has_partition(self, database: Oid, relation: Relation) -> bool:
        """Return whether a relation is a partition of a relation of the table, under its own name."""
        return (database, relation.partition_of) in self.members

    def contains(self, database: Oid, relation: Relation, beginning: Callable[[], Beginning | None]) -> bool:
        """Return whether the rows of a relation belong to the table; `beginning` names the databases."""
        if not self.members.isdisjoint((database, oid) for oid in (relation.oid, relation.partition_of)):
            return True
        return matches(relation.qualified_name, self.patterns) and self._is_in(database, beginning())

    def _is_in(self, database: Oid, beginning: Beginning | None) -> bool:
        """Return whether a database is that of the table, or was created again under its name."""
        if any(database == known for known, _ in self.members):
            return True
        return beginning is not None and beginning.databases.get(database) in self.databases

    def differences(self, relation: Relation, names: frozenset[str] | None = None) -> list[str]:
        """Return the differences of a version from the query, as text; with `names` only those of these columns."""
        return self.differences_to(columns_of(relation, self.types), names)

    def differences_to(self, columns: tuple[QueryColumn, ...], names: frozenset[str] | None = None) -> list[str]:
        """Return the differences of other columns from those of the query, as `differences` does."""
        mine = {column.name: column.type for column in self.columns if names is None or column.name in names}
        theirs = {column.name: column.type for column in columns}
        gone = [f"{name} is missing" for name in mine if name not in theirs]
        added = [f"{name} is new" for name in theirs if names is None and name not in mine]
        retyped = [
            f"{name} is {theirs[name]} instead of {kind}"
            for name, kind in mine.items()
            if name in theirs and theirs[name] != kind
        ]
        return gone + added + retyped


def columns_of(relation: Relation, types: TypeMapping) -> tuple[QueryColumn, ...]:
    """Return the columns of a relation as the lake names them."""
    shape = shape_of(relation, types)
    return tuple(
        QueryColumn(column.name, column.number, shape.field(column.index).type) for column in lake_columns(relation)
    )


def find_table(text: str, versions: SchemaVersions, databases: Mapping[Oid, str], types: TypeMapping) -> QueryTable:
    """Return the table that the option `table` names: names or patterns, separated by commas.

    Raises `UnknownTable` if one of them matches no table, or `TablesDiffer`.
    """
    patterns = tuple(part.strip() for part in text.split(","))
    newest: _Versions = {}
    ever: dict[str, _Versions] = {pattern: {} for pattern in patterns}  # the newest ones with a name that matches
    for version, (database, relation) in sorted(versions.items()):
        newest[database, relation.oid] = version, relation
        for pattern in patterns:
            if matches(relation.qualified_name, (pattern,)):
                ever[pattern][database, relation.oid] = version, relation
    found = _found(ever, newest)
    names = sorted({databases.get(database, str(database)) for database, _ in found})
    if len(names) > 1:  # NB: a database that was created again is another one of the same name
        raise UnknownTable(f"table {text!r} exists in the databases {', '.join(names)}", hint="capture them separately")
    partitions = {key for key, (_, relation) in newest.items() if (key[0], relation.partition_of) in found}
    latest = {relation.qualified_name: relation for _, relation in sorted(found.values(), key=lambda known: known[0])}
    described_by, (_, relation) = max(found.items(), key=lambda one: one[1][0])
    table = QueryTable(
        patterns,
        frozenset(names),
        frozenset(partitions | found.keys()),
        described_by,
        tuple(sorted(latest)),
        any(one.kind == ROUTED_KIND and not one.has_partition_rows for _, one in found.values()),
        columns_of(relation, types),
        max(versions),
        types,
    )
    for name, other in latest.items():
        if differences := table.differences(other):
            raise TablesDiffer(
                f"the columns of {name} differ from those of {relation.qualified_name}: {differences[0]}"
            )
    return table


def _found(ever: Mapping[str, _Versions], newest: _Versions) -> _Versions:
    """Return the tables of all patterns, each of which must match one; raise `UnknownTable`."""
    present: _Versions = {}
    former: _Versions = {}
    for pattern, matching in ever.items():
        if not matching:
            raise UnknownTable(
                f"table {pattern!r} is not in the outbox",
                hint=f"it appears with its first change or copy; known: {_listed(newest)}",
            )
        # NB: in a state of version 0.1, a table that was renamed back has the version from before, whose number is not
        # the newest.
        current = {key: known for key, known in matching.items() if newest[key] == known}
        present |= current
        former |= {} if current else matching
    return former | present


def _listed(newest: _Versions, most: int = 10) -> str:
    names = sorted({relation.qualified_name for _, relation in newest.values()})
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "") if names else "none"
