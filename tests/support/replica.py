"""A replica in memory, kept by what change groups say and by nothing else; compared with the table itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from psycopg import sql as quoting

from tests.support.oracle import FENCE, OurSide, emit_fence
from tests.support.postgres import Cluster
from tidemark.decode.codecs.codec import ArrowValue, Dialect
from tidemark.decode.codecs.registry import column_codec
from tidemark.decode.grouping import Grouper
from tidemark.decode.transactions import CommittedTransaction
from tidemark.decode.tuples import missing_value
from tidemark.model.change import (
    AFTER,
    BEFORE,
    ChangeBatch,
    ChangeGroup,
    LogicalMessage,
    RewriteBoundary,
    SchemaEffect,
    SchemaEvent,
    Truncation,
)
from tidemark.model.relation import Column, Relation

Row = dict[int, object]  # by the number of the column
UNCHANGED = object()


@dataclass
class Table:
    """Rows of one relation by the value of its first column, which is its key throughout."""

    relation: Relation
    rows: dict[object, Row] = field(default_factory=dict)

    def image(self) -> list[dict[str, object]]:
        """Return the rows as SQL would show them, in the order of their keys."""
        columns = self.relation.live_columns
        return [{column.name: row.get(column.number) for column in columns} for _, row in sorted(self.rows.items())]


class Replica:
    """All tables of a database, by OID."""

    def __init__(self) -> None:
        self.tables: dict[int, Table] = {}
        self.rewriting: set[int] = set()
        self._effects: list[str] = []  # of schema events, with the table's name

    def apply(self, group: ChangeGroup) -> None:
        """Apply a group; batches between two barriers hold different relations, so their order does not matter."""
        for item in group.items:
            match item:
                case ChangeBatch():
                    self._rows(item)
                case SchemaEvent():
                    self._schema(item)
                case RewriteBoundary():
                    self._boundary(item)
                case Truncation():
                    self._table(item.relation).rows.clear()
                case _:
                    pass

    def take_effects(self) -> list[str]:
        """Return the effects that were told since the last call."""
        taken, self._effects = self._effects, []
        return taken

    def _table(self, relation: Relation) -> Table:
        table = self.tables.setdefault(relation.oid, Table(relation))
        table.relation = relation
        return table

    def _rows(self, batch: ChangeBatch) -> None:
        table = self._table(batch.relation)
        columns = batch.relation.live_columns
        for row in batch.rows.to_pylist():
            assert (row["_op"] == "r") == (batch.relation.oid in self.rewriting), "rewritten rows stand in boundaries"
            old, new = row[BEFORE], row[AFTER]
            key_name = columns[0].name
            previous = table.rows.pop((old or new)[key_name], {})
            if new is not None:
                bits = int.from_bytes(row["_unchanged"] or b"", "little")
                table.rows[new[key_name]] = {
                    column.number: previous[column.number] if bits >> place & 1 else new[column.name]
                    for place, column in enumerate(columns)
                }

    def _schema(self, event: SchemaEvent) -> None:
        described = event.after or event.before
        assert described is not None
        self._effects.append(f"{described.name} {event.effect.value}")
        if event.after is None:
            self.tables.pop(described.oid, None)
            return
        table = self._table(event.after)
        if event.effect is SchemaEffect.CONSTANT:
            known = {column.number for column in event.before.columns} if event.before is not None else set()
            for column in event.after.live_columns:
                if column.number not in known:
                    for row in table.rows.values():
                        row[column.number] = constant(column)

    def _boundary(self, boundary: RewriteBoundary) -> None:
        if boundary.begin:
            self._table(boundary.relation).rows.clear()
            self.rewriting.add(boundary.relation.oid)
        else:
            self.rewriting.remove(boundary.relation.oid)


def constant(column: Column) -> object:
    """Return what a new column holds in rows that are older than it, as a batch would hold it."""
    value = missing_value(column)
    codec = column_codec(column, Dialect())
    arrow: ArrowValue = None
    if isinstance(value, str):
        arrow = codec.parse_text(value)
    elif isinstance(value, bytes):
        arrow = codec.arrow_value(value)
    shown: object = pa.array([arrow], codec.arrow_type).to_pylist()[0]
    return shown


class Replicating(OurSide):
    """Our side of a database with a replica at its end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.replica = Replica()
        dialects = {oid: mirror.dialect for oid, mirror in self.seed.mirrors.items()}
        self.grouper = Grouper(dialects, rows_max=50)

    def take(self, decoded: CommittedTransaction | LogicalMessage) -> None:
        """Apply what was decoded; remember fences."""
        if isinstance(decoded, CommittedTransaction):
            for item in decoded.items():
                if isinstance(item, LogicalMessage) and item.prefix == FENCE:
                    self.fences.add(item.content.decode())
            for group in self.grouper.add_transaction(decoded):
                self.replica.apply(group)

    def catch_up(self) -> Mapping[str, Table]:
        """Follow to now; return the replica's tables by name."""
        self.read_until(emit_fence(self.cluster, self.databases[0]))
        last = self.grouper.flush()
        if last is not None:
            self.replica.apply(last)
        assert not self.replica.rewriting, "a rewrite's end is in its transaction"
        return {table.relation.qualified_name: table for table in self.replica.tables.values()}


def source_image(cluster: Cluster, database: str, relation: Relation) -> list[dict[str, object]]:
    """Return the rows of a table by SQL, in the order of its first column; a partition's or a table's own only."""
    columns = relation.live_columns
    name = quoting.Identifier(relation.namespace, relation.name)
    selected = quoting.SQL(", ").join(quoting.Identifier(column.name) for column in columns)
    query = quoting.SQL("SELECT {} FROM ONLY {} ORDER BY 1").format(selected, name)
    with cluster.connect(database) as session:
        session.execute("SET timezone = 'UTC'")
        found = session.execute(query).fetchall()
    return [dict(zip((column.name for column in columns), row, strict=True)) for row in found]
