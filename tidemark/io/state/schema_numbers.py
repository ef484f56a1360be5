"""The numbers of the schema versions in a state, and which versions no value in the outbox needs any more.

Readers keep a version by its number, so no number is used twice: the next one follows the greatest stored number, and
the version that has it is never deleted. Of the versions of a table, the one with the greatest number is the one that
was delivered last, by its name, columns and keys: a table that gets an earlier one of these again, such as a column
that gets an earlier type, has new numbers from then on. The newest version with each of its latest names stays: queries
find the table by these (`tidemark.pipeline.source.rows.query_table`). Of dropped tables, those of the latest ones stay.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from tidemark.model.lsn import Oid
from tidemark.model.position import NO_SEQUENCE, Sequence
from tidemark.model.relation import Relation
from tidemark.wire.recopies import TableKey
from tidemark.wire.relations import SchemaVersion

VERSIONS_A_CHECK = 1_000  # new versions between two searches for unneeded ones
DROPPED_KEPT = 200  # dropped tables of which versions stay
NAMES_KEPT = 8  # latest names of a table of which a version stays


class PresentVersions:
    """The numbers of the versions that tables have with their latest names, columns and keys; `by_table` has them."""

    def __init__(self) -> None:
        self.by_table: dict[TableKey, dict[Relation, SchemaVersion]] = {}

    def __contains__(self, table: TableKey) -> bool:
        """Return whether a table has a version."""
        return table in self.by_table

    def number(self, database: Oid, relation: Relation) -> SchemaVersion | None:
        """Return the number of a version; None if it has none, or the table had another name, columns or keys since."""
        versions = self.by_table.get((database, relation.oid))
        return None if versions is None else versions.get(relation)

    def add(self, database: Oid, relation: Relation, number: SchemaVersion) -> None:
        """Record the number of a version that follows all others."""
        if self.looks_different(database, relation):
            del self.by_table[database, relation.oid]
        self.by_table.setdefault((database, relation.oid), {})[relation] = number

    def looks_different(self, database: Oid, relation: Relation) -> bool:
        """Return whether the latest version of the relation has another name, other columns or other keys.

        Other differences may alternate: a transaction that inserts while a label of its enum is renamed commits rows of
        the earlier version after those of the later one.
        """
        latest = next(iter(self.by_table.get((database, relation.oid), ())), relation)
        return latest is not relation and _looks(latest) != _looks(relation)

    def forget(self, numbers: Collection[SchemaVersion]) -> None:
        """Remove versions."""
        kept = {
            table: {of: number for of, number in versions.items() if number not in numbers}
            for table, versions in self.by_table.items()
        }
        self.by_table = {table: versions for table, versions in kept.items() if versions}


def _looks(relation: Relation) -> tuple[object, ...]:
    keys = relation.replica_identity, relation.identity_columns, relation.primary_key
    columns = relation.live_columns
    return (
        relation.qualified_name,
        keys,
        *((one.number, one.name, one.type and one.type.oid, one.typmod) for one in columns),
    )


class SchemaNumbers:
    """The schema versions of one state as its deliverer knows them; for one thread."""

    def __init__(
        self, versions: Mapping[SchemaVersion, tuple[Oid, Relation]] | None = None, head: Sequence = NO_SEQUENCE
    ) -> None:
        """`versions`: the stored ones, ascending. `head`: of the outbox, whose values may name any of them."""
        self.present = PresentVersions()
        # The last value that may name a version; the transaction that delivers sets it. Ascending numbers.
        self.named: dict[SchemaVersion, int] = {}
        self._names: dict[SchemaVersion, tuple[TableKey, str]] = {}  # the table of a version, and its name there
        self._dropped: dict[TableKey, int] = {}  # and the head then, oldest first
        self._unchecked = 0  # versions that were stored after the last search
        self.needs_search = False  # once the outbox is trimmed up to:
        self._search_after: int = head
        self.add(versions or {}, head)

    def tables(self) -> set[TableKey]:
        """Return the tables of which a version is stored."""
        return {table for table, _ in self._names.values()}

    def drop(self, tables: Iterable[TableKey], head: int) -> None:
        """Record that tables are dropped; no value after `head` names their versions, unless they come back."""
        for table in tables:
            self._dropped.pop(table, None)
            if table in self.present:  # else there is nothing to delete: a state without an outbox has few versions
                self._dropped[table] = head

    def unneeded(self, trimmed: Sequence) -> list[SchemaVersion] | None:
        """Return the versions to delete; None: no search is due. The outbox has values after `trimmed` only."""
        if not self.needs_search or trimmed < self._search_after:
            return None
        kept = self._kept()
        return [number for number, named in self.named.items() if named <= trimmed and number not in kept]

    def searched(self, deleted: Collection[SchemaVersion]) -> None:
        """Record that a search took place, and what was deleted: the next one follows further versions."""
        self.needs_search = False
        if deleted:
            self.named = {number: at for number, at in self.named.items() if number not in deleted}
            self._names = {number: of for number, of in self._names.items() if number not in deleted}
            self.present.forget(deleted)
            self._dropped = {table: at for table, at in self._dropped.items() if table in self.present}

    def add(self, new: Mapping[SchemaVersion, tuple[Oid, Relation]], head: int) -> None:
        """Record new versions, ascending, which values up to `head` name."""
        for number, (database, relation) in new.items():
            self.present.add(database, relation, number)
            self.named[number] = head
            self._names[number] = (database, relation.oid), relation.qualified_name
        self._unchecked += len(new)
        # NB: a planned search stays where it is: readers may always have more versions before them than that.
        if self._unchecked > VERSIONS_A_CHECK and not self.needs_search:
            self._unchecked, self.needs_search, self._search_after = 0, True, head

    def _kept(self) -> set[SchemaVersion]:
        """Return the versions that stay even if no value names them."""
        last_named: dict[TableKey, int] = {}
        newest: dict[TableKey, dict[str, SchemaVersion]] = {}  # by name, the latest name last
        for number, (table, name) in self._names.items():
            names = newest.setdefault(table, {})
            names.pop(name, None)
            names[name] = number
            last_named[table] = max(last_named.get(table, NO_SEQUENCE), self.named[number])
        dropped = [table for table, at in self._dropped.items() if last_named.get(table, at) <= at]
        forgotten = set(dropped[: max(0, len(dropped) - DROPPED_KEPT)])
        return {
            number
            for table, names in newest.items()
            if table not in forgotten
            for number in islice(reversed(names.values()), NAMES_KEPT)
        } | {max(self.named)}
