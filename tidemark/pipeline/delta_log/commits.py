"""The commits of a Delta table as its log records them: which are Tidemark's, and which change rows.

Every commit of Tidemark has a mark in `commitInfo`: the name of the application and a random token, which is also the
version of one of the commit's application transactions. Application transactions alone do not identify a commit: a
clone of a table copies them, and they survive a RESTORE.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tidemark.model.errors import ConfigError
from tidemark.pipeline.delta_log.commit_files import commit_path
from tidemark.pipeline.failures import is_of_host
from tidemark.pipeline.storage.lake_store import Stamp
from tidemark.pipeline.storage.store_errors import store_failure
from tidemark.pipeline.storage.stores import is_remote, open_delta, store_of

MARK = "tidemark.commit"
TOKEN = "commit"  # noqa: S105 - the name of an application transaction
TOKEN_BITS = 62  # a transaction's version is a signed number of 64 bits
LOOKED_AT_MAX = 10  # newest commits, which may be maintenance, in which the last one of Tidemark is looked for
_FILES = ("add", "remove", "cdc")
_RESTORE = "RESTORE"


class CommitUnreadable(ConfigError):
    """A file of a Delta log exists but the file system cannot read it: the state of the table is unknown."""

    hint = (
        "the user of the pipeline must be able to read and write the whole lake: check owner and mode of the file "
        "and its folders"
    )


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One commit; `foreign` is false for a commit of Tidemark, `changes` describes what another writer changed."""

    version: int
    foreign: bool
    token: int | None  # of a commit of Tidemark
    changes: str  # "" for maintenance, which changes no row
    changes_metadata: bool  # properties, columns or the protocol


def new_token() -> int:
    """Return a token for the next commit."""
    return random.getrandbits(TOKEN_BITS)


def mark_of(app: str, token: int) -> str:
    """Return the value under `MARK` in `commitInfo` of a commit with `token`."""
    return f"{app}:{token}"


def commits_after(uri: str, app: str, after: int, last: int, *, unmarked: bool = False) -> Iterator[TableCommit | None]:
    """Yield the commits after version `after` up to `last`; None for one that can no longer be read.

    `unmarked`: application transactions identify Tidemark's commits, as in lakes that were written before marks
    existed.
    """
    for version in range(after + 1, last + 1):
        yield read_commit(uri, app, version, unmarked=unmarked)


def read_commit(uri: str, app: str, version: int, *, unmarked: bool = False) -> TableCommit | None:
    """Read one commit; None if its file is missing or damaged. Raises `CommitUnreadable`."""
    try:
        text = store_of(uri).read(commit_path(uri, version)).decode()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    except (PermissionError, IsADirectoryError) as error:  # other disk errors may be transient
        raise CommitUnreadable(f"{commit_path(uri, version)} cannot be read: {error.strerror}") from error
    try:
        actions = [_object(json.loads(line)) for line in text.split("\n") if line.strip()]
        return _judge(app, version, actions, unmarked=unmarked) if actions else None
    except ValueError:
        return None


def last_transactions(uri: str, app: str, version: int) -> Callable[[str], int | None] | None:
    """Return how the application transactions of a table are looked up, as of `version`.

    None: delta-rs looks them up. It reads the log again for each of them: on a local file system 0.14 ms, as much as
    reading one commit here, so that only the newest one is looked at. Each commit of Tidemark has all of them.
    """
    looked_at, unreadable = (LOOKED_AT_MAX, FileNotFoundError) if is_remote(uri) else (1, OSError)
    for number in range(version, max(-1, version - looked_at), -1):
        with suppress(ValueError, KeyError, TypeError, unreadable):
            found = _transactions(store_of(uri).read(commit_path(uri, number)).decode())
            if f"{app}:{TOKEN}" in found:
                return found.get
    return None


def _transactions(text: str) -> dict[str, int]:
    lines = (line for line in text.split("\n") if line.startswith('{"txn"'))
    actions = [json.loads(line)["txn"] for line in lines]
    return {action["appId"]: action["version"] for action in actions}


def has_commit(uri: str, version: int) -> bool:
    """Return whether the log contains the commit of `version`."""
    return store_of(uri).exists(commit_path(uri, version))


def log_stamp(uri: str, version: int) -> Stamp:
    """Return a value that differs after the commit was replaced; () if it is missing.

    On a local file system it differs after any file of the log was added, removed or replaced, too.
    """
    return store_of(uri).stamp(commit_path(uri, version))


def changed_columns(uri: str, first: int, last: int) -> str:
    """Return how names or types of columns differ between two versions; "" if they are equal."""
    try:
        before, after = (_column_types(open_delta(uri, number)) for number in (first, last))
    except (DeltaError, OSError) as error:
        if is_of_host(error) or store_failure(error):
            raise
        return "its columns before and after can no longer be compared"
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return f"columns differ: {', '.join(names)}" if names else ""


def _column_types(table: DeltaTable) -> dict[str, str]:
    return {field.name: str(field.type) for field in table.schema().fields}


def _judge(app: str, version: int, actions: list[Mapping[str, object]], *, unmarked: bool) -> TableCommit:
    info: Mapping[str, object] = {}
    transactions: dict[str, object] = {}
    rows_differ = changes_metadata = False
    for action in actions:
        for kind, body in action.items():
            fields = _object(body)
            if kind == "commitInfo":
                info = fields
            elif kind == "txn":
                transactions[str(fields.get("appId"))] = fields.get("version")
            elif kind in _FILES:
                rows_differ = rows_differ or fields.get("dataChange", True) is not False
            elif kind in ("metaData", "protocol"):
                changes_metadata = True
    names = {name for name in transactions if name.startswith(f"{app}:")}
    token = transactions.get(f"{app}:{TOKEN}")
    is_ours = info.get(MARK) == f"{app}:{token}" if token is not None else unmarked and bool(names)
    operation = str(info.get("operation", "an unnamed operation"))
    by = f"{operation} at version {version} by {info.get('engineInfo', 'an unnamed writer')}"
    if is_ours:
        changes = ""
    elif rows_differ or operation == _RESTORE:
        changes = by
    else:
        changes = f"{by}, which sets Tidemark's application transactions" if names else ""
    return TableCommit(version, not is_ours, token if isinstance(token, int) else None, changes, changes_metadata)


def _object(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"an action is {type(value).__name__}")  # noqa: TRY004 - damaged bytes
    return value
