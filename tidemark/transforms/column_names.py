"""The columns that a transform names: `schema.table.column`, each part a pattern with `*` and `?`.

As in names of tables, a part that contains a dot is written in double quotes, and a name without a schema is in
`public`. `old|new` are two names of one column: a rename in the source does not end the capture then.
"""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Self

from tidemark.transforms.transform import BadTransform, TableShape

_PART = re.compile(r'"(?:[^"]|"")+"|[^".]+')
_WILD = re.compile(r"[*?\[]")
HINT = 'write schema.table.column, for example "public.customers.email" or "public.*.email"'


@dataclass(frozen=True, slots=True)
class ColumnName:
    """A pattern for columns."""

    text: str
    schema: str
    table: str
    names: tuple[str, ...]  # of the column: alternatives

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a pattern; raise `BadTransform` if it is invalid."""
        if not re.fullmatch(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern})){{1,2}}", text):
            raise BadTransform(f"not a column's name: {text!r}", hint=HINT)
        parts = [_unquoted(part) for part in _PART.findall(text)]
        schema, table, column = parts if len(parts) > 2 else ("public", *parts)
        return cls(text, schema, table, tuple(column.split("|")))

    def find(self, shape: TableShape, transform: object) -> tuple[str, ...]:
        """Return the matching columns of a table.

        Raise `BadTransform` if the table and the column are named without patterns, and there is no such column.
        """
        found = self._matching(shape)
        is_plain = not any(_WILD.search(part) for part in (self.schema, self.table, *self.names))
        if is_plain and not found and self._is_of(shape):
            raise BadTransform(
                f"{transform}: {shape.table} has no column {' or '.join(self.names)}; "
                f"its columns are {', '.join(shape.names)}",
                hint=f'if it was renamed, name both: "{self.schema}.{self.table}.{self.names[0]}|new_name"; '
                "nothing of this version of the table was delivered",
            )
        return found

    def is_in(self, shape: TableShape) -> bool:
        """Return whether a table has a matching column."""
        return bool(self._matching(shape))

    def _is_of(self, shape: TableShape) -> bool:
        relation = shape.relation
        return fnmatchcase(relation.namespace, self.schema) and fnmatchcase(relation.name, self.table)

    def _matching(self, shape: TableShape) -> tuple[str, ...]:
        if not self._is_of(shape):
            return ()
        return tuple(name for name in shape.names if any(fnmatchcase(name, own) for own in self.names))


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
