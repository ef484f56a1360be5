"""Deletes events of tables whose log no longer has the rows up to there (`log_keep_days`).

A replay begins after the deleted rows. Of the events up to there it needs only the last one that describes a relation
version in Arrow, on which later events and rows of that version rely. Bounds of copies stay as well: they are few, and
end a time in which columns were left out of the log. Of a table that was removed from the lake no event is needed.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import pyarrow.compute as pc

from tidemark.model.lsn import Lsn
from tidemark.pipeline.lake.positions.table_position import TableId
from tidemark.pipeline.lake.tables.delta_sql import quoted
from tidemark.pipeline.lake.tables.lake_table import LakeTable

TABLES_MAX = 100  # of which events are deleted at a time, in one commit
KEY = ("database", "relation")
POSITION = ("_tli", "_commit_lsn", "_ordinal")
DESCRIPTION = "columns"  # NULL: the version is that of an earlier event
COPY = "copy"  # kind of an event

_Place = tuple[int, int, int]
IsRemoved = Callable[[TableId, Lsn], bool]
"""Returns whether a table was removed from the lake after all its changes up to a commit LSN."""
ExpiredLsn = Callable[[TableId], Lsn]
"""Returns up to which commit LSN rows of a table's log may be deleted; 0: the log has all."""


def expire_events(table: LakeTable, expired_lsn: ExpiredLsn, is_removed: IsRemoved) -> None:
    """Delete the events that no replay needs."""
    places: dict[TableId, list[tuple[_Place, bool]]] = defaultdict(list)
    for batch in table.scan([*KEY, *POSITION, DESCRIPTION], pc.field("kind") != COPY):
        numbers = [batch.column(name).to_pylist() for name in (*KEY, *POSITION)]
        describes = pc.is_valid(batch.column(DESCRIPTION)).to_pylist()
        for database, relation, tli, lsn, ordinal, is_described in zip(*numbers, describes, strict=True):
            places[database, relation].append(((tli, lsn, ordinal), is_described))
    removed = [of for of, known in places.items() if is_removed(of, Lsn(max(lsn for (_, lsn, _), _ in known)))]
    if removed:
        table.delete(" OR ".join(f"({_equal(KEY, of)})" for of in removed[:TABLES_MAX]), table.applied)
    conditions: list[str] = []
    for of, known in places.items():
        if len(conditions) < TABLES_MAX and len(known) > 1 and of not in removed:
            conditions.extend(_condition(of, known, expired_lsn(of)))
    if conditions:
        table.delete(f"kind <> '{COPY}' AND ({' OR '.join(conditions)})", table.applied)


def tables_with_events(table: LakeTable) -> set[TableId]:
    """Return the tables that have events."""
    return {of for batch in table.scan(list(KEY)) for of in zip(*batch.to_pydict().values(), strict=True)}


def delete_events(table: LakeTable, of: Sequence[TableId]) -> None:
    """Delete all events of tables."""
    for first in range(0, len(of), TABLES_MAX):
        part = of[first : first + TABLES_MAX]
        table.delete(" OR ".join(f"({_equal(KEY, one)})" for one in part), table.applied)


def _condition(of: TableId, known: list[tuple[_Place, bool]], expired_lsn: Lsn) -> Iterator[str]:
    """Yield what is true for the events of one table that are deleted, if there are any."""
    old = [each for each in known if each[0][1] <= expired_lsn]
    described = max((place for place, is_described in old if is_described), default=None)
    if all(each == (described, True) for each in old):
        return
    where = f"{_equal(KEY, of)} AND {quoted('_commit_lsn')} <= {expired_lsn}"
    if described is not None:
        where += f" AND NOT ({_equal(POSITION, described)} AND {quoted(DESCRIPTION)} IS NOT NULL)"
    yield f"({where})"


def _equal(names: tuple[str, ...], values: tuple[int, ...]) -> str:
    return " AND ".join(f"{quoted(name)} = {value}" for name, value in zip(names, values, strict=True))
