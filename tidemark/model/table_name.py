"""A table's name as an operator writes it: `table`, `schema.table` or `database.schema.table`.

As in the patterns of the configuration, case is significant and a name without a schema is in `public`. A part that
contains a dot or a double quote is written in double quotes, as in SQL: `"a.b"."5""disk"`.
"""

import re
from dataclasses import dataclass
from typing import Self

from tidemark.model.errors import ConfigError

DEFAULT_SCHEMA = "public"
_PART = re.compile(r'"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^".]+)')
PARTS_MAX = 3


class InvalidTableName(ConfigError):
    """Text that is not a table name."""

    hint = 'write schema.table or database.schema.table, and a part with a dot or a quote in it as "a.b"'


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's name; without a database it matches any captured database."""

    schema: str
    table: str
    database: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a table name; raise `InvalidTableName` if it is invalid."""
        parts: list[str] = []
        at = 0
        while len(parts) < PARTS_MAX and (part := _PART.match(text, at)) is not None:
            parts.append(part["plain"] or part["quoted"].replace('""', '"'))
            at = part.end()
            if at == len(text):
                return cls._of(parts)
            if text[at] != ".":
                break
            at += 1
        raise InvalidTableName(f"not a table's name: {text!r}")

    @classmethod
    def _of(cls, parts: list[str]) -> Self:
        *database, schema, table = parts if len(parts) > 1 else [DEFAULT_SCHEMA, *parts]
        return cls(schema, table, *database)

    def __str__(self) -> str:
        parts = (self.schema, self.table) if self.database is None else (self.database, self.schema, self.table)
        return ".".join(_written(part) for part in parts)


def _written(part: str) -> str:
    return part if re.fullmatch(r'[^".]+', part) else '"' + part.replace('"', '""') + '"'
