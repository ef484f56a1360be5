"""The breaks in diverged logs that an operator accepted: a file of the state folder for each reader.

`cdcctl table recopy` (tables) and `cdcctl spark accept-break` (messages) write it, the pipeline reads it. It has the
position before each break, so an old entry accepts no other break.
"""

from collections.abc import Mapping
from pathlib import Path

from tidemark.io.host.disk import writing
from tidemark.wire.json_form import JsonForm, JsonMismatch

_FORM: JsonForm[dict[str, str]] = JsonForm(dict[str, str])
_GROUP_MODE = 0o060  # of the state folder: Spark's user may differ


def log_key(database: int | str, relation: int | str) -> str:
    """Return the key of a log; relation 0: the log of the database's messages."""
    return f"{database}.{relation}" if int(relation) else str(database)


def accept_breaks(state: Path, reader: str, breaks: Mapping[str, str]) -> None:
    """Add the position before the break, by the key of the log."""
    file = _file(state, reader)
    written = file.with_suffix(".new")
    with writing(file):
        written.touch(mode=0o600 | state.stat().st_mode & _GROUP_MODE)
        written.write_bytes(_FORM.write({**accepted_breaks(state, reader), **breaks}))
        written.rename(file)


def accepted_breaks(state: Path, reader: str) -> Mapping[str, str]:
    """Return the written breaks; none if the file is missing or damaged."""
    try:
        return _FORM.read(_file(state, reader).read_bytes())
    except (FileNotFoundError, JsonMismatch):
        return {}


def _file(state: Path, reader: str) -> Path:
    return state / f"accepted-breaks-{reader}.json"
