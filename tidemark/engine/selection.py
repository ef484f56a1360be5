"""Which databases and tables are captured: include and exclude patterns (I37).

A pattern is a name with `*` and `?`, case-sensitive as PostgreSQL's names are. Tables are matched as
`schema.table`; a pattern without a dot means the schema `public`. Something is captured if an include pattern
matches and no exclude pattern does. Names are matched as of each change, so a new matching table is picked up live.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from tidemark.model.relation import Relation

SYSTEM_SCHEMAS = frozenset({"pg_catalog", "information_schema", "pg_toast"})


@dataclass(frozen=True, slots=True)
class Selection:
    """The patterns."""

    databases: tuple[str, ...] = ("*",)
    tables: tuple[str, ...] = ("*.*",)
    exclude_tables: tuple[str, ...] = ()
    exclude_databases: tuple[str, ...] = ()

    def selects_database(self, name: str) -> bool:
        """Tell if a database is captured."""
        included = any(fnmatchcase(name, pattern) for pattern in self.databases)
        return included and not any(fnmatchcase(name, pattern) for pattern in self.exclude_databases)

    def selects_table(self, namespace: str, name: str) -> bool:
        """Tell if the patterns match a table."""
        if namespace in SYSTEM_SCHEMAS or namespace.startswith("pg_temp"):
            return False
        qualified = f"{namespace}.{name}"
        included = any(fnmatchcase(qualified, _qualified(pattern)) for pattern in self.tables)
        return included and not any(fnmatchcase(qualified, _qualified(pattern)) for pattern in self.exclude_tables)

    def selects(self, relation: Relation) -> bool:
        """Tell if changes of a relation are given out."""
        return self.selects_table(relation.namespace, relation.name)


def _qualified(pattern: str) -> str:
    return pattern if "." in pattern else f"public.{pattern}"
