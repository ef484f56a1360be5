"""Sets aside what a loss of power left incomplete in the log of a Delta table on a local file system.

delta-rs and other writers sync nothing. A commit that `durability` had not synced yet may be a file that is empty, or
one that names data files that are not complete; a checkpoint may be empty although `_last_checkpoint` names it. Such a
commit is the newest one and not recorded in `_positions`, so the outbox still has its values, and the table continues
without it. The file is renamed: a `#` in its name hides it from delta-rs, and `log_cleanup` removes it later.

NB: a writer that runs now cannot be mistaken for one that lost power: all of them write a commit under another name, or
with all its content at once, after its data files.
"""

from contextlib import suppress
from urllib.parse import unquote

from tidemark.pipeline.delta_log.commit_files import LOG_FOLDER, commit_path
from tidemark.pipeline.delta_log.commits import has_commit, read_commit
from tidemark.pipeline.delta_log.durability import added_files
from tidemark.pipeline.delta_log.log_cleanup import LAST_CHECKPOINT, commit_version, last_checkpoint
from tidemark.pipeline.storage.stores import is_remote, store_of

ASIDE = "#0"
NO_BYTE = b"\0"


def set_torn_commit_aside(uri: str, app: str, recorded: int | None) -> bool:
    """Set the newest commit aside if it is incomplete, not recorded, and not a complete one of another writer.

    `recorded` is the version in `_positions`, None for a table that is not recorded there. Raises `OSError`.
    """
    if is_remote(uri):
        return False
    newest = _newest(uri) if recorded is None else _newest_after(uri, recorded)
    if newest is None or not (_is_empty(uri, newest) or _lacks_files(uri, app, newest)):
        return False
    _set_aside(uri, commit_path(uri, newest))
    return True


def set_torn_checkpoint_aside(uri: str) -> bool:
    """Set `_last_checkpoint` aside if it names a checkpoint that cannot be read: delta-rs then reads the commits."""
    path = f"{uri}/{LOG_FOLDER}/{LAST_CHECKPOINT}"
    if is_remote(uri) or not store_of(uri).exists(path) or last_checkpoint(f"{uri}/{LOG_FOLDER}") is not None:
        return False
    _set_aside(uri, path)
    return True


def _newest_after(uri: str, recorded: int) -> int | None:
    newest = recorded
    while has_commit(uri, newest + 1):
        newest += 1
    return newest if newest > recorded else None


def _newest(uri: str) -> int | None:
    with suppress(FileNotFoundError, NotADirectoryError):
        versions = (commit_version(file.name) for file in store_of(uri).files(f"{uri}/{LOG_FOLDER}"))
        return max((version for version in versions if version is not None), default=None)
    return None


def _is_empty(uri: str, version: int) -> bool:
    with suppress(PermissionError, IsADirectoryError):  # opening the table reports them
        return not store_of(uri).read(commit_path(uri, version)).strip(NO_BYTE)
    return False


def _lacks_files(uri: str, app: str, version: int) -> bool:
    commit = read_commit(uri, app, version)
    if commit is None or commit.foreign:
        return False
    return any(not _is_complete(uri, name, size) for name, size in added_files(uri, version))


def _is_complete(uri: str, name: str, size: int) -> bool:
    try:
        return store_of(uri).size(f"{uri}/{unquote(name)}") == size
    except FileNotFoundError:
        return False


def _set_aside(uri: str, path: str) -> None:
    store = store_of(uri)
    store.move(path, f"{path}{ASIDE}")
    store.sync_folder(f"{uri}/{LOG_FOLDER}")
