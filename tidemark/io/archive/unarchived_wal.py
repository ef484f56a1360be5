"""The amount of WAL that the server keeps because it is not archived, from the server's files alone (I25).

Standard library only: `cdcctl-archive` uses it while archiving fails. A segment that waits for archive_command has a
file NAME.ready in pg_wal/archive_status. WAL that the server keeps for another reason (wal_keep_size, recycled
segments) has none and does not count.
"""

import os
from pathlib import Path

_READY = ".ready"


def unarchived_bytes(pg_wal: Path, *, enough: int) -> int | None:
    """Return the bytes of the files that wait to be archived, counted up to `enough`; None if they cannot be listed."""
    if enough == 0:
        return 0
    found = 0
    try:
        with os.scandir(pg_wal / "archive_status") as entries:
            for entry in entries:
                if found >= enough:
                    break
                if entry.name.endswith(_READY):
                    found += _size(pg_wal / entry.name.removesuffix(_READY))
    except OSError:
        return None
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0  # removed meanwhile
