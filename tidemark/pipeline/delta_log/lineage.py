"""The record of a Delta table in the positions table, and the check that the table still matches this record.

A table is checked when it is opened, before the first write: its id, its version, and each commit after the recorded
version. Usually there are no such commits, and nothing is read. A change by another writer cannot be undone here: the
table has *diverged*. A property that restricts writes *stops* the table until the property is undone.
"""

from dataclasses import dataclass

from deltalake import DeltaTable

from tidemark.model.errors import ConsumerFailed
from tidemark.pipeline.delta_log.commits import changed_columns, commits_after
from tidemark.pipeline.delta_log.restrictions import column_restrictions, restrictions

NO_VERSION = -1


@dataclass(frozen=True, slots=True)
class Recorded:
    """One Delta table at the pipeline's last write; "" and None: written before ids and tokens were recorded."""

    version: int = NO_VERSION  # NO_VERSION: the table does not exist
    id: str = ""
    token: int | None = None  # of the last commit of Tidemark


NEVER_WRITTEN = Recorded()


class TableDiverged(ConsumerFailed):
    """Another writer changed a table's content, the table is damaged, or its history cannot be determined."""

    hint = "cdcctl table recopy recreates the table from the source"


class TableStopped(ConsumerFailed):
    """A property of a table restricts writes."""

    hint = "undo the property: the table then continues"


def check_lineage(uri: str, app: str, table: DeltaTable | None, token: int | None, recorded: Recorded) -> None:
    """Raise `TableDiverged` or `TableStopped` unless `table` may be written; `token` is that of its last commit."""
    if table is None:
        if recorded.version != NO_VERSION:
            raise TableDiverged(f"{uri} does not exist; its recorded version is {recorded.version}")
        return
    if recorded.id and str(table.metadata().id) != recorded.id:
        raise TableDiverged(f"{uri} was recreated by another writer: it has another id")
    if table.version() < recorded.version:
        raise TableDiverged(
            f"{uri} was restored from an older copy: it has version {table.version()}, but version "
            f"{recorded.version} was written"
        )
    has_new_columns = _check_commits(uri, app, table, recorded, token)
    check_restrictions(uri, table, columns=has_new_columns)


def check_restrictions(uri: str, table: DeltaTable, *, columns: bool = False) -> None:
    """Raise `TableStopped` if something restricts writes; with `columns` also check the columns."""
    found = restrictions(table, uri)
    if columns:
        found += column_restrictions(table, uri)
    if found:
        reasons = "; ".join(f"{one.what} restricts writes; undo it with {one.undo}" for one in found)
        raise TableStopped(f"{uri}: {reasons}")


def _check_commits(uri: str, app: str, table: DeltaTable, recorded: Recorded, token: int | None) -> bool:
    """Check the commits after the recorded version; return whether a foreign one changes properties or columns."""
    is_known, has_metadata = False, False
    commits = commits_after(uri, app, recorded.version, table.version(), unmarked=not recorded.id)
    for number, commit in enumerate(commits, recorded.version + 1):
        if commit is None:
            raise TableDiverged(f"{uri}: the commit of version {number} cannot be read, so it cannot be checked")
        if commit.changes:
            raise TableDiverged(f"{uri} was changed by another writer: {commit.changes}")
        if not commit.foreign:
            is_known = True
        elif not number:
            raise TableDiverged(f"{uri} was created by another writer")
        elif commit.changes_metadata:
            has_metadata = True
            changed = changed_columns(uri, number - 1, number)
            if changed:
                raise TableDiverged(f"{uri} was changed by another writer at version {number}: {changed}")
    if not is_known and recorded.token is not None and token != recorded.token:
        raise TableDiverged(
            f"{uri} was restored from an older copy: it does not contain the last commit of this pipeline"
        )
    return has_metadata
