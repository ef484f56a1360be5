"""Deletes data files that no version needs which may still be read, a bounded number in each run.

delta-rs finds the files: those that a commit removed, and those that no commit names, of more than a number of hours
ago. Files of the version that `_positions` records are kept, however old that version is: a reader of the consistent
cut opens it. delta-rs's own vacuum would delete without a bound, and make two commits.
"""

from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from deltalake import DeltaTable

from tidemark.io.host.failpoints import passed
from tidemark.pipeline.failpoints import MaintenanceFailpoint


def delete_unused_files(uri: str, hours: int, recorded: int, most: int) -> int:
    """Delete up to `most` files of the table at `uri` that are unused for `hours`; return their number.

    `recorded`: the version in `_positions`, whose files are kept. Raises `DeltaError` and `OSError`.
    """
    unused = DeltaTable(uri).vacuum(
        retention_hours=hours, dry_run=True, enforce_retention_duration=False, full=True, keep_versions=[recorded]
    )
    deleted = unused[:most]
    for name in deleted:
        with suppress(FileNotFoundError):
            (Path(uri) / unquote(name)).unlink()
        passed(MaintenanceFailpoint.UNUSED_FILE_DELETED)
    return len(deleted)
