"""Which databases and tables are captured: include and exclude patterns (I37).

A pattern is a name with `*` and `?`, case-sensitive as PostgreSQL's names are. Tables are matched as
`schema.table`; a pattern without a dot means the schema `public`. A database or table is captured if an include pattern
matches and no exclude pattern does. Names are matched at each change, so a new matching table is captured at once.

Changes of partitions get the name of a partitioned table above them that `partition_roots` matches (the topmost one if
several match); then only this name decides whether they are captured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tidemark.model.origins import ExcludedOrigins
from tidemark.model.relation import Relation

EVERY_ORIGIN = "any"
SYSTEM_SCHEMAS = frozenset({"pg_catalog", "information_schema", "pg_toast"})


@dataclass(frozen=True, slots=True)
class Selection:
    """The patterns."""

    databases: tuple[str, ...] = ("*",)
    tables: tuple[str, ...] = ("*.*",)
    exclude_tables: tuple[str, ...] = ()
    exclude_databases: tuple[str, ...] = ()
    partition_roots: tuple[str, ...] = ()
    exclude_origins: tuple[str, ...] = ()
    messages: tuple[str, ...] = ("*",)

    def selects_database(self, name: str) -> bool:
        """Return whether a database is captured."""
        included = any(fnmatchcase(name, pattern) for pattern in self.databases)
        return included and not any(fnmatchcase(name, pattern) for pattern in self.exclude_databases)

    def selects_table(self, namespace: str, name: str) -> bool:
        """Return whether the patterns match a table."""
        if namespace in SYSTEM_SCHEMAS or namespace.startswith("pg_temp"):
            return False
        qualified = f"{namespace}.{name}"
        return matches(qualified, self.tables) and not matches(qualified, self.exclude_tables)

    def selects(self, relation: Relation) -> bool:
        """Return whether changes of a relation are delivered."""
        return self.selects_table(relation.namespace, relation.name)

    def selects_message(self, prefix: str) -> bool:
        """Return whether logical messages with a prefix are delivered."""
        return any(fnmatchcase(prefix, pattern) for pattern in self.messages)

    def excluded_origins(self) -> ExcludedOrigins:
        """Return the replication origins whose changes are left out."""
        ids = frozenset(int(origin) for origin in self.exclude_origins if origin != EVERY_ORIGIN)
        return ExcludedOrigins(ids, every=EVERY_ORIGIN in self.exclude_origins)

    def root_of(self, lineage: Sequence[Relation]) -> Relation | None:
        """Return which of some partitioned tables, nearest first, names the changes below it; None if none does."""
        matching = (above for above in lineage if self.is_root(above.namespace, above.name))
        return next(reversed(list(matching)), None)

    def is_root(self, namespace: str, name: str) -> bool:
        """Return whether changes of partitions get the name of this partitioned table."""
        return namespace not in SYSTEM_SCHEMAS and matches(f"{namespace}.{name}", self.partition_roots)


def matches(qualified: str, patterns: Sequence[str]) -> bool:
    """Return whether one of the patterns for tables matches a table's qualified name."""
    return any(fnmatchcase(qualified, _qualified(pattern)) for pattern in patterns)


def _qualified(pattern: str) -> str:
    return pattern if "." in pattern else f"public.{pattern}"
