"""Lines of test_decoding built value by value, by the types' codecs alone: the model for the kernels' lines."""

from dataclasses import dataclass

from tidemark.decode.datum.tuples import Datum, TupleLayout, deform
from tidemark.decode.datum.varlena import ExternalPointer
from tidemark.decode.types.identifiers import quote_identifier
from tidemark.decode.types.registry import column_codec
from tidemark.model.relation import Column, Relation

MAJOR = 15
UNQUOTED = {"int2", "int4", "int8", "oid", "float4", "float8", "numeric"}


def literal(column: Column, value: Datum) -> str:
    assert column.type is not None
    if value is None:
        return "null"
    if isinstance(value, ExternalPointer):
        return "unchanged-toast-datum"
    text = value if isinstance(value, str) else column_codec(column).text(value)
    if column.type.name in UNQUOTED:
        return text
    if column.type.name == "bool":
        return "true" if text == "t" else "false"
    if column.type.name in ("bit", "varbit"):
        return f"B'{text}'"
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True)
class ChangedRow:
    """A row change: the letter of its op, and packed tuples."""

    op: str
    old: bytes | None
    new: bytes | None


def columns_of(relation: Relation, packed: bytes | None, *, shows_nulls: bool) -> str:
    if packed is None:
        return " (no-tuple-data)"
    values = deform(packed, TupleLayout.of(relation))
    printed = []
    for column, value in zip(relation.columns, values, strict=True):
        if not column.dropped and column.type is not None and (shows_nulls or value is not None):
            label = f" {quote_identifier(column.name, MAJOR)}[{column.type.display_name}]:"
            printed.append(label + literal(column, value))
    return "".join(printed)


def value_line(relation: Relation, row: ChangedRow) -> str:
    head = f"table {quote_identifier(relation.namespace, MAJOR)}.{quote_identifier(relation.name, MAJOR)}:"
    old, new = columns_of(relation, row.old, shows_nulls=False), columns_of(relation, row.new, shows_nulls=True)
    if row.op == "i":
        return f"{head} INSERT:{new}"
    if row.op == "d":
        return f"{head} DELETE:{old}"
    return f"{head} UPDATE:" + (f" old-key:{old} new-tuple:{new}" if row.old is not None else new)
