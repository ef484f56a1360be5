"""Opens a Delta table in delta-rs, and names the error of one that cannot be opened."""

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from tidemark.pipeline.delta_log.lineage import TableDiverged
from tidemark.pipeline.failures import first_reason, is_of_host
from tidemark.pipeline.lake.tables.table_errors import REASON_MAX, LakeFailed, lake_failure, unavailable_store
from tidemark.pipeline.storage.stores import open_delta, store_of
from tidemark.pipeline.storage.turns import waiting


def opened_table(uri: str, version: int | None = None, *, is_recorded: bool) -> DeltaTable | None:
    """Return the table at `uri`, or an older `version`; None if there is none.

    A table that `is_recorded` and cannot be read has diverged, unless the host or the store is the cause.
    """
    try:
        with waiting():
            return open_delta(uri, version)
    except TableNotFoundError as error:
        # NB: also for an unreadable folder, which must not be treated as missing.
        if store_of(uri).is_unreadable(uri):
            raise LakeFailed(f"{uri} is not readable") from error
        return None
    except OSError as error:
        raise lake_failure(error, f"{uri}: {first_reason(str(error))}") from error
    except DeltaError as error:
        unavailable = unavailable_store(error, uri)
        if unavailable is not None:
            raise unavailable from error
        reason = f"{uri} cannot be read: {first_reason(str(error))[:REASON_MAX]}"
        raise (TableDiverged if is_recorded and not is_of_host(error) else LakeFailed)(reason) from error


def table_id(uri: str) -> str:
    """Return the id of the table at `uri`; "" if there is none."""
    try:
        return str(open_delta(uri).metadata().id)
    except TableNotFoundError:
        return ""
    except (DeltaError, OSError) as error:
        raise lake_failure(error, f"{uri}: {first_reason(str(error))}") from error
