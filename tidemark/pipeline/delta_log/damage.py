"""Checks whether a Delta table can be read from disk: damage of one table, or a fault of the whole lake.

The check runs after a batch has failed. A commit log that cannot be parsed, and a data file that is missing, has
another size, or cannot be decoded although its bytes can be read, are faults of one table, which has *diverged*. A
folder that is missing or not readable and a disk that returns errors are not: the batch is tried again.

NB: the check reads every data file of the table. It is called only after a failure without another explanation, and a
stop ends it. Before a diverged table is recreated, only the files that its fault names are read again.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from tidemark.pipeline.delta_log.commit_files import LOG_FOLDER
from tidemark.pipeline.delta_log.commits import has_commit
from tidemark.pipeline.failures import first_reason, is_of_host
from tidemark.pipeline.storage.lake_store import LakeStore
from tidemark.pipeline.storage.store_errors import store_failure
from tidemark.pipeline.storage.stores import open_delta, store_of

REASON_MAX = 200  # characters of a foreign error message
BATCH_ROWS = 1024  # read together: rows may be wide


class ScanStopped(Exception):
    """The process is stopping; the scan is incomplete."""


def damage_of(
    uri: str,
    opened: DeltaTable | None = None,
    *,
    is_read: Callable[[str], bool] = lambda _path: True,
    is_over: Callable[[], bool] = lambda: False,
) -> str:
    """Return what is lost or damaged of the table at `uri`; "" if nothing is, or if the disk does not permit the check.

    `opened`: the table itself, if it was opened just now: its log can be read.
    Data files for which `is_read` is true are read; of the others only the size is checked. Raise `ScanStopped` once
    `is_over` returns true.
    """
    log, store = f"{uri}/{LOG_FOLDER}", store_of(uri)
    try:
        if store.is_plain_file(log):
            return f"{log} is not a folder"
        try:
            table = opened or open_delta(uri)
        except TableNotFoundError:
            return ""  # the table was removed, or the lake's folder is gone
        except (DeltaError, OSError):
            _read_bytes(store, *(f"{log}/{file.name}" for file in store.files(log)), is_over=is_over)
            try:  # a second time: an error of the disk or of memory may have been transient
                table = open_delta(uri)
            except DeltaError as error:
                if is_of_host(error) or store_failure(error):
                    return ""
                return f"the commit log of {uri} cannot be read: {first_reason(str(error))[:REASON_MAX]}"
        found = next(_damaged_files(uri, table, is_read, is_over), "")
        # NB: maintenance that was committed meanwhile may have removed a file.
        return "" if has_commit(uri, table.version() + 1) else found
    except OSError:
        return ""


def _damaged_files(
    uri: str, table: DeltaTable, is_read: Callable[[str], bool], is_over: Callable[[], bool]
) -> Iterator[str]:
    """Yield the fault of each damaged data file; raise `OSError` for errors that are not damage."""
    added, store = pa.table(table.get_add_actions(flatten=True)), store_of(uri)
    for name, size in zip(added.column("path").to_pylist(), added.column("size_bytes").to_pylist(), strict=True):
        path = f"{uri}/{unquote(name)}"
        try:
            found = store.size(path)
        except FileNotFoundError:
            store.files(f"{uri}/{LOG_FOLDER}")  # if the folder is gone, the fault is not limited to a file
            yield f"data file {path} is missing"
            continue
        if found != size:
            yield f"data file {path} has {found} bytes, but {size} were written"
            continue
        if not is_read(path):
            continue
        try:
            with pq.ParquetFile(store.parquet_source(path)) as file:
                for _ in file.iter_batches(batch_size=BATCH_ROWS):
                    _check_stop(is_over)
        except (pa.ArrowNotImplementedError, MemoryError):
            continue  # too large for this kind of read, which is no sign of damage
        except (pa.ArrowException, OSError) as error:
            if is_of_host(error) or store_failure(error):
                continue
            _read_bytes(store, path, is_over=is_over)
            yield f"data file {path} is damaged: {first_reason(str(error))[:REASON_MAX]}"


def _read_bytes(store: LakeStore, *paths: str, is_over: Callable[[], bool]) -> None:
    """Read files; raise `OSError` if the disk or the permissions prevent that."""
    for path in paths:
        with suppress(IsADirectoryError):
            for _ in store.pieces(path):
                _check_stop(is_over)


def _check_stop(is_over: Callable[[], bool]) -> None:
    if is_over():
        raise ScanStopped
