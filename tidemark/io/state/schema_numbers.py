"""The numbers of the schema versions in a state, and which versions no value in the outbox needs any more.

Readers keep a version by its number, so no number is used twice: the next one follows the greatest stored number, and
the version that has it is never deleted. Of a table, the newest version with each of its names stays, by which queries
find it (`tidemark.pipeline.source.rows.query_table`); of dropped tables, those of the latest ones.
"""

from collections.abc import Collection, Iterable, Mapping

from tidemark.model.lsn import Oid
from tidemark.model.position import NO_SEQUENCE, Sequence
from tidemark.model.relation import Relation
from tidemark.wire.recopies import TableKey
from tidemark.wire.relations import SchemaVersion

VERSIONS_A_CHECK = 1_000  # new versions between two searches for unneeded ones
DROPPED_KEPT = 200  # dropped tables of which versions stay


class SchemaNumbers:
    """The schema versions of one state as its deliverer knows them; for one thread."""

    def __init__(
        self, versions: Mapping[SchemaVersion, tuple[Oid, Relation]] | None = None, head: Sequence = NO_SEQUENCE
    ) -> None:
        """`versions`: the stored ones. `head`: of the outbox, whose values may name any of them."""
        self.numbers = {described: number for number, described in (versions or {}).items()}
        # The last value that may name a version; the transaction that delivers sets it.
        self.named: dict[SchemaVersion, int] = dict.fromkeys(self.numbers.values(), head)
        self._dropped: dict[TableKey, int] = {}  # and the head then, oldest first
        self._unchecked = len(self.numbers)  # versions that were stored after the last search
        self.needs_search = False  # once the outbox is trimmed up to:
        self._search_after: int = head
        self._plan_search(head)

    def tables(self) -> set[TableKey]:
        """Return the tables of which a version is stored."""
        return {(database, relation.oid) for database, relation in self.numbers}

    def drop(self, tables: Iterable[TableKey], head: int) -> None:
        """Record that tables are dropped; no value after `head` names their versions, unless they come back."""
        for table in tables:
            self._dropped.pop(table, None)
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
            self.numbers = {of: number for of, number in self.numbers.items() if number not in deleted}
            self.named = {number: at for number, at in self.named.items() if number not in deleted}
            known = self.tables()
            self._dropped = {table: at for table, at in self._dropped.items() if table in known}

    def add(self, new: Mapping[tuple[Oid, Relation], SchemaVersion], head: int) -> None:
        """Record new versions, which values up to `head` name."""
        self.numbers.update(new)
        self.named.update(dict.fromkeys(new.values(), head))
        self._unchecked += len(new)
        self._plan_search(head)

    def _plan_search(self, head: int) -> None:
        # NB: a planned search stays where it is: readers may always have more versions before them than that.
        if self._unchecked > VERSIONS_A_CHECK and not self.needs_search:
            self._unchecked, self.needs_search, self._search_after = 0, True, head

    def _kept(self) -> set[SchemaVersion]:
        """Return the versions that stay even if no value names them."""
        last_named: dict[TableKey, int] = {}
        newest: dict[tuple[TableKey, str], SchemaVersion] = {}
        for (database, relation), number in sorted(self.numbers.items(), key=lambda known: known[1]):
            table = database, relation.oid
            newest[table, relation.qualified_name] = number
            last_named[table] = max(last_named.get(table, NO_SEQUENCE), self.named[number])
        dropped = [table for table, at in self._dropped.items() if last_named.get(table, at) <= at]
        forgotten = set(dropped[: max(0, len(dropped) - DROPPED_KEPT)])
        return {number for (table, _), number in newest.items() if table not in forgotten} | {max(self.named)}
