"""The columns of a table as Tidemark left them, recorded in a property: another writer's change of them is detected.

Iceberg keeps the schemas of a table, but not who made them, and the next append would leave out the values of a column
that is no longer there. Comments are not compared: a user may write them.
"""

import hashlib
from collections.abc import Mapping

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, NestedField, StructType

from tidemark.pipeline.iceberg.snapshot_summary import IcebergTableChanged

COLUMNS = "tidemark.columns"  # absent: the table was written before columns were recorded


def columns_record(schema: Schema) -> str:
    """Return what is recorded of the columns: it differs for other names, types, numbers or an order."""
    lines = "\n".join(_texts(schema).values())
    return hashlib.sha256(lines.encode()).hexdigest()


def check_columns(table: Table) -> None:
    """Raise `IcebergTableChanged` if the columns are not those of the last commit of Tidemark."""
    recorded, schema = table.properties.get(COLUMNS), table.schema()
    if recorded is None or columns_record(schema) == recorded:
        return
    own = next((one for one in table.schemas().values() if columns_record(one) == recorded), None)
    raise IcebergTableChanged(
        f"{'.'.join(table.name())} was changed by another writer: its columns differ ({_difference(own, schema)})",
        hint="undo the change of the schema, or write to a new lake and copy the tables again",
    )


def _difference(before: Schema | None, after: Schema) -> str:
    if before is None:
        return "the former columns are no longer known"
    old, new = _texts(before), _texts(after)
    return (
        ", ".join(sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))) or "their order"
    )


def _texts(schema: Schema) -> Mapping[str, str]:
    return {field.name: _text(field) for field in schema.fields}


def _text(field: NestedField) -> str:
    return f"{field.field_id} {field.name!r} {_type_text(field.field_type)} {field.required}"


def _type_text(kind: IcebergType) -> str:
    if isinstance(kind, StructType):
        return f"struct<{', '.join(map(_text, kind.fields))}>"
    return str(kind)
