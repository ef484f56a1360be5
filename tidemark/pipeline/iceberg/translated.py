"""The errors of pyiceberg, of its catalog in SQLite and of the disk, as those of Tidemark.

A commit that lost against another one is not handled here: only its table can be examined (`iceberg_table`).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
from sqlalchemy.exc import SQLAlchemyError

from tidemark.io.host.disk import is_full
from tidemark.model.errors import ConsumerFailed, Disposition
from tidemark.pipeline.failures import first_reason, reports_full_disk
from tidemark.pipeline.lake.tables.table_errors import REASON_MAX, LakeFailed, LakeFull

_SQLITE_FULL = "database or disk is full"


class UnfitForIceberg(ConsumerFailed):
    """A table that cannot be an Iceberg table as it is."""

    disposition = Disposition.HALT
    hint = "exclude the table from the capture, or rename the column at the source, and start the pipeline again"


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Raise the error of Tidemark for one in the block; `where` names the table or the catalog."""
    try:
        yield
    except (OSError, SQLAlchemyError, NoSuchTableError, TableAlreadyExistsError) as error:
        text = str(error)
        is_disk_full = is_full(error) or reports_full_disk(text) or _SQLITE_FULL in text
        raise (LakeFull if is_disk_full else LakeFailed)(f"{where}: {first_reason(text)[:REASON_MAX]}") from error
    except (ValueError, NotImplementedError, pa.ArrowException) as error:
        raise UnfitForIceberg(f"{where}: {first_reason(str(error))[:REASON_MAX]}") from error
