"""Finds the tables of a requested copy by name, and the LSN from which the copy may begin."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from tidemark.engine.selection import Selection
from tidemark.io.node.database_names import database_names
from tidemark.io.node.named_relations import NamedRelation, named_relations
from tidemark.io.node.node import Node
from tidemark.io.node.node_errors import CopyDenied
from tidemark.io.state.state import NotInitialised, StateStore
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import Lsn, Oid, SystemIdentifier
from tidemark.model.table_name import TableName
from tidemark.wire.recopies import RequestedTable

TABLE_KIND, PARTITIONED_KIND = "r", "p"  # pg_class.relkind
KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "c": "a composite type"}
PERSISTENCES = {"u": "unlogged", "t": "temporary"}  # pg_class.relpersistence: other tables are in WAL


class CannotRecopy(ConfigError):
    """Names of tables that cannot be copied."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a table is not copied, and the remedy."""

    because: str
    hint: str
    is_denied: bool = False  # the role may not read the table


class TableFinder:
    """Finds tables of the captured databases by name; rejects all that cannot be copied, in one error."""

    def __init__(
        self, dsn: str, selection: Selection, system_identifier: SystemIdentifier, databases: Container[Oid]
    ) -> None:
        """`databases`: those in the state."""
        self._dsn = dsn
        self._selection = selection
        with Node(self._dsn) as node:
            node.check_same_node(system_identifier)
            self._databases = database_names(node, databases)

    @classmethod
    def of(cls, dsn: str, selection: Selection, store: StateStore) -> Self:
        """Return the finder of a state."""
        return cls(dsn, selection, store.identity.system_identifier, captured_databases(store))

    def find(self, names: Sequence[TableName]) -> list[RequestedTable]:
        """Return the tables with these names; raise `CannotRecopy` or `CopyDenied`, which name every rejected table."""
        found: dict[TableName, list[tuple[Oid, str, NamedRelation]]] = {name: [] for name in names}
        for oid, database in self._databases.items():
            requested = [name for name in names if name.database in (None, database)]
            if not requested or not self._selection.selects_database(database):
                continue
            with Node(self._dsn, database) as node:
                named = named_relations(node, {(name.schema, name.table) for name in requested})
            for name in requested:
                if (relation := named.get((name.schema, name.table))) is not None:
                    found[name].append((oid, database, relation))
        refused = {name: refusal for name in names if (refusal := self._refusal(name, found[name])) is not None}
        if refused:
            message = "; ".join(f"{name} {refusal.because}" for name, refusal in refused.items())
            hint = "; ".join(dict.fromkeys(refusal.hint for refusal in refused.values()))
            are_denied = all(refusal.is_denied for refusal in refused.values())
            raise (CopyDenied if are_denied else CannotRecopy)(message, hint=hint)
        return [
            RequestedTable((oid, relation.oid), str(TableName(name.schema, name.table, database)))
            for name, ((oid, database, relation),) in found.items()
        ]

    def _refusal(self, name: TableName, found: Sequence[tuple[Oid, str, NamedRelation]]) -> _Refusal | None:
        if not found:
            return self._unknown(name)
        if len(found) > 1:
            databases = " and ".join(database for _, database, _ in found)
            return _Refusal(f"is in the databases {databases}", "write database.schema.table")
        ((_, _, relation),) = found
        return next(_refusals(name, relation, self._selection), None)

    def _unknown(self, name: TableName) -> _Refusal:
        captured = sorted(each for each in self._databases.values() if self._selection.selects_database(each))
        if name.database is not None and name.database not in captured:
            return _Refusal("is in a database that is not captured", f"captured databases: {', '.join(captured)}")
        hint = "names are case-sensitive; a name without a schema means schema public"
        return _Refusal("does not exist", hint)


def _refusals(name: TableName, relation: NamedRelation, selection: Selection) -> Iterator[_Refusal]:
    """Yield the reasons why an existing relation cannot be copied, the most important one first."""
    if relation.kind not in (TABLE_KIND, PARTITIONED_KIND):
        yield _Refusal(f"is {KINDS.get(relation.kind, 'no table')}", "name the tables that are captured")
    if relation.persistence in PERSISTENCES:
        kind = PERSISTENCES[relation.persistence]
        yield _Refusal(f"is {kind}", f"{kind} tables are not in WAL, and are not captured")
    root = next((above for above in reversed(relation.ancestors) if selection.is_root(*above)), None)
    if root is not None:
        yield _Refusal(
            "is a partition whose changes are delivered under the name of its root", f"name {TableName(*root)}"
        )
    if relation.kind == PARTITIONED_KIND and not selection.is_root(name.schema, name.table):
        hint = "name its partitions, or list it in select.partition_roots"
        yield _Refusal("is partitioned, and its partitions are captured under their own names", hint)
    if not selection.selects_table(name.schema, name.table):
        yield _Refusal("is not selected", "see select.tables and select.exclude_tables")
    if not relation.usable:
        yield _Refusal(
            "is in a schema that lacks USAGE for the capture's role",
            "GRANT USAGE ON SCHEMA TO the capture's role",
            is_denied=True,
        )
    if not relation.readable:
        yield _Refusal(
            "lacks SELECT for the capture's role", "GRANT SELECT ON the table TO the capture's role", is_denied=True
        )
    if relation.row_security:
        hint = "ALTER ROLE of the capture BYPASSRLS, or drop the policies"
        yield _Refusal("has row-level security that hides rows from the capture's role", hint, is_denied=True)


def captured_databases(store: StateStore) -> Mapping[Oid, str]:
    """Return the databases in a state, by their names at its start."""
    beginning = store.view().beginning
    if beginning is None:
        raise NotInitialised(f"{store.folder.root} has no start position")
    return beginning.databases


def present_lsn(dsn: str) -> Lsn:
    """Return an LSN after all commits so far, and make sure that a record follows it."""
    with Node(dsn) as node:
        lsn = node.insert_lsn()
        node.flush_all()
    return lsn
