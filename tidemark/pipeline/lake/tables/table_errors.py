"""The errors of reads and writes of a Delta table of the lake, and which of them a failure is.

The commits of other writers since the table was opened decide that: another pipeline's, maintenance, or changed data.
"""

from tidemark.io.host.disk import StateFull
from tidemark.model.errors import ConsumerFailed, Disposition, Fenced, TidemarkError
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.delta_log.commits import has_commit, read_commit
from tidemark.pipeline.delta_log.lineage import TableDiverged
from tidemark.pipeline.failures import first_reason, named_failure, reports_full_disk
from tidemark.pipeline.storage.store_errors import StoreUnavailable, store_failure

REASON_MAX = 200  # characters of a foreign error message


class TableFenced(Fenced):
    """Another pipeline committed to a table of this lake."""

    hint = "two pipelines write to one lake: stop one of them; no change is duplicated or lost"

    def __init__(self, uri: str, cause: str) -> None:
        super().__init__(f"another writer committed to {uri}: {cause}")


class TableMoved(ConsumerFailed):
    """Another writer committed maintenance since the table was opened."""

    disposition = Disposition.RETRY
    hint = "no change is lost: the table is opened again; run its maintenance less often"

    def __init__(self, uri: str, cause: str, applied: Applied) -> None:
        super().__init__(f"{uri} has new commits of another writer's maintenance: {cause}")
        self.applied = applied


class LakeFailed(ConsumerFailed):
    """delta-rs cannot read or write a table."""

    disposition = Disposition.RETRY
    hint = "check that the folder of the lake exists, has free space, and is writable; its content is unchanged"


class LakeFull(StateFull):
    """The disk of the lake's folder is full; a pipeline waits, a command ends."""

    hint = "free space on the disk of the lake"


def unavailable_store(error: BaseException, uri: str) -> StoreUnavailable | None:
    """Return the error for a failure of the store of a table; None for another failure."""
    if isinstance(error, StoreUnavailable):
        return error
    reason = store_failure(error)
    return StoreUnavailable(f"{uri}: {reason}") if reason else None


def lake_failure(error: BaseException, reason: str) -> TidemarkError:
    """Return the error for a failure that is not one of a commit."""
    found = store_failure(error)
    return StoreUnavailable(f"{reason.partition(': ')[0]}: {found}") if found else LakeFailed(reason)


def table_failure(
    error: Exception, uri: str, app: str, opened: int, *, applied: Applied, token: int | None, unmarked: bool
) -> TidemarkError:
    """Return the error for a failed read or commit of a table that was opened at version `opened`.

    `token` is that of the commit that failed, `applied` what the table contained before it.
    """
    named = named_failure(str(error))
    if named is not None:
        return named
    version = opened + 1
    while has_commit(uri, version):
        commit = read_commit(uri, app, version, unmarked=unmarked)
        if commit is None:
            return TableDiverged(f"{uri}: the commit of version {version} cannot be read")
        if not commit.foreign and (token is None or commit.token != token):
            return TableFenced(uri, str(error))
        if commit.changes:
            return TableDiverged(f"{uri} was changed by another writer: {commit.changes}")
        version += 1
    reason = first_reason(str(error))
    if version > opened + 1:
        return TableMoved(uri, reason, applied)
    kind = LakeFull if reports_full_disk(str(error)) else LakeFailed
    return unavailable_store(error, uri) or kind(f"{uri}: {reason}")
