"""Requests to resume paused tables of a lake: an empty file of the state folder for each table and reader.

`cdcctl table resume` creates it; the pipeline removes it when the table has caught up, or cannot be written again. A
kill in between leaves the file, so the next start continues.
"""

import re
from pathlib import Path

from tidemark.io.host.disk import writing
from tidemark.model.errors import ConfigError

_GROUP_MODE = 0o060  # of the state folder: Spark's user may differ
_KEY = re.compile(r"\d+(\.\d+)?")  # see `accepted_breaks.log_key`


def request_resume(state: Path, reader: str, key: str) -> None:
    """Request that the table with this key is resumed; an open request is kept."""
    file = _file(state, reader, key)
    with writing(file):
        file.touch(mode=0o600 | state.stat().st_mode & _GROUP_MODE)


def is_requested(state: Path, reader: str, key: str) -> bool:
    """Return whether the request is open."""
    return _file(state, reader, key).exists()


def close_request(state: Path, reader: str, key: str) -> None:
    """Remove a request, if there is one."""
    file = _file(state, reader, key)
    with writing(file):
        file.unlink(missing_ok=True)


def requested_keys(state: Path, reader: str) -> list[str]:
    """Return the keys of the open requests of a reader."""
    start = _start(reader)
    keys = (path.name.removeprefix(start) for path in state.glob("resume-*") if path.name.startswith(start))
    return [key for key in keys if _KEY.fullmatch(key)]


def _file(state: Path, reader: str, key: str) -> Path:
    if not _KEY.fullmatch(key):
        raise ConfigError(f"not a key of a table: {key!r}", hint="use DATABASE.RELATION, or DATABASE for messages")
    return state / f"{_start(reader)}{key}"


def _start(reader: str) -> str:
    return f"resume-{reader}-"
