"""The columns with which a query continues: those of its unread rows, if these may not fit the newest columns.

The query then reads up to the change, ends with `SchemaChanged`, and has the next columns at its next start. Columns
are those of the first unread group, so that each start reads at least that group.
"""

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from tidemark.model.lsn import Oid
from tidemark.model.position import Sequence
from tidemark.model.relation import Relation
from tidemark.pipeline.source.outbox_port import OutboxPort
from tidemark.pipeline.source.rows.query_table import QueryTable, SchemaVersions, columns_of
from tidemark.pipeline.source.rows.row_form import TableColumns
from tidemark.wire.relations import SchemaVersion
from tidemark.wire.values import ValueHeader

HEADERS_AT_ONCE = 10_000


def fit_to_unread(table: QueryTable, outbox: OutboxPort, after: Sequence) -> QueryTable:
    """Return the table with the columns in which the values after `after` can be read."""
    versions = {
        version: (database, relation)
        for version, (database, relation) in outbox.relations().items()
        if table.contains(database, relation, outbox.beginning)
    }
    unfit = [version for version, known in versions.items() if _may_not_fit(table, *known)]
    if not unfit:
        return table
    first = _first_version(outbox, after, versions)
    if first is None or first > max(unfit):
        return table
    database, relation = versions[first]
    return replace(
        table,
        described_by=(database, relation.oid),
        columns=columns_of(relation, table.types),
        newest=first,
    )


def _first_version(outbox: OutboxPort, after: Sequence, versions: SchemaVersions) -> SchemaVersion | None:
    """Return the greatest version in the first group that has one of `versions`."""
    found: SchemaVersion | None = None
    group_first: Sequence | None = None
    for header in _headers(outbox, after):
        if found is not None and header.group_first != group_first:
            break
        if header.schema_version in versions and (found is None or header.schema_version > found):
            found, group_first = header.schema_version, header.group_first
    return found


def _headers(outbox: OutboxPort, after: Sequence) -> Iterator[ValueHeader]:
    head, after = outbox.head(), max(after, outbox.ledger().trimmed)  # NB: the stream itself reports a lapsed reader
    while after < head:
        upto = Sequence(min(head, after + HEADERS_AT_ONCE))
        yield from outbox.headers(after, upto)
        after = upto


def _may_not_fit(table: QueryTable, database: Oid, relation: Relation) -> bool:
    """Return whether a value of a version may not be exactly the same in the column of the table."""
    types = {column.number: column.type for column in columns_of(relation, table.types)}
    return any(
        origin is not None and not _always_fits(types[origin.number], field.type)
        for field, origin in TableColumns(table).origins(database, relation)
    )


def _always_fits(narrow: pa.DataType, wide: pa.DataType) -> bool:
    if narrow == wide:
        return True
    kinds = (pa.types.is_signed_integer, pa.types.is_floating)
    if any(is_kind(narrow) and is_kind(wide) for is_kind in kinds):
        return bool(narrow.bit_width <= wide.bit_width)
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        return bool(narrow.scale <= wide.scale and narrow.precision - narrow.scale <= wide.precision - wide.scale)
    return False
