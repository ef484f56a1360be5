"""Properties and features of a Delta table that restrict writes, and how to undo each of them.

Deletion vectors and column mapping change how every reader and writer must interpret the files. Append-only tables and
constraints refuse writes that a replica needs. Other properties are harmless and are ignored.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from deltalake import DeltaTable

_SET = "ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ('{name}' = '{value}')"
_DROP_CONSTRAINT = "ALTER TABLE delta.`{uri}` DROP CONSTRAINT {name}"
_DROP_FEATURE = "ALTER TABLE delta.`{uri}` DROP FEATURE {name}"
_DROP_NOT_NULL = "ALTER TABLE delta.`{uri}` ALTER COLUMN `{name}` DROP NOT NULL"
_CONSTRAINT = "delta.constraints."
_MODE = "delta.columnMapping.mode"
_SWITCHES = ("delta.appendOnly", "delta.enableDeletionVectors")
_WRITTEN = frozenset(  # features that delta-rs 1.6 writes; those with a property restrict writes only where it is set
    {
        "appendOnly",
        "invariants",
        "checkConstraints",
        "changeDataFeed",
        "generatedColumns",
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    }
)


@dataclass(frozen=True, slots=True)
class Restriction:
    """A restriction of a table, and the command that removes it."""

    what: str
    undo: str


def restrictions(table: DeltaTable, uri: str) -> list[Restriction]:
    """Return the restrictions on writes to the snapshot `table`."""
    found = list(_of_properties(dict(table.metadata().configuration), uri))
    features = set(table.protocol().writer_features or ())
    return found + [
        Restriction(f"the table feature {name}", _DROP_FEATURE.format(uri=uri, name=name))
        for name in sorted(features - _WRITTEN)
    ]


def column_restrictions(table: DeltaTable, uri: str) -> list[Restriction]:
    """Return the NOT NULL columns of the snapshot `table`; Tidemark creates none."""
    return [
        Restriction(f"NOT NULL of column {field.name}", _DROP_NOT_NULL.format(uri=uri, name=field.name))
        for field in table.schema().fields
        if not field.nullable
    ]


def _of_properties(properties: dict[str, str | None], uri: str) -> Iterator[Restriction]:
    for name in _SWITCHES:
        if str(properties.get(name, "")).lower() == "true":
            yield Restriction(f"the property {name}", _SET.format(uri=uri, name=name, value="false"))
    if str(properties.get(_MODE) or "none").lower() != "none":
        yield Restriction(f"the property {_MODE}", _SET.format(uri=uri, name=_MODE, value="none"))
    for name in sorted(properties):
        if name.startswith(_CONSTRAINT):
            constraint = name.removeprefix(_CONSTRAINT)
            what = f"the constraint {constraint} CHECK ({properties[name]})"
            yield Restriction(what, _DROP_CONSTRAINT.format(uri=uri, name=constraint))
