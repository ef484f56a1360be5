"""Translates errors of the disk under the state folder, in one place.

A full disk is `StateFull`. Delivery waits for space; a daemon whose other work meets it waits in its loop
(`tidemark.io.process.disk_space`); a command ends with the error.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemark.model.errors import StateError

_FULL = (errno.ENOSPC, errno.EDQUOT)


class StateFull(StateError):
    """The bound of the outbox, the disk or the LMDB map is reached; delivery waits and tries again."""

    hint = (
        "see `cdcctl reader list` for readers that have not confirmed, and check the free space under the state folder"
    )


def is_full(error: BaseException) -> bool:
    """Return whether an error means that there is no space: waiting may help."""
    return isinstance(error, StateFull) or (isinstance(error, OSError) and error.errno in _FULL)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Translate the operating system's errors for `path` in the body."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise StateFull(f"no space for {path}: {error.strerror}") from error
        hint = "check the owner and the permissions of the state folder, and that it is on a local disk"
        raise StateError(f"cannot write {path}: {error.strerror}", hint=hint) from error


def write_all(descriptor: int, content: bytes | bytearray | memoryview) -> None:
    """Write all of `content`. NB: `os.write` on a nearly full disk writes a part, and only its result shows this."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def sync(path: Path | str) -> None:
    """Make the content of a file, or the entries of a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes, file_mode: int) -> None:
    """Write a file under another name and rename it; durable once its folder is synced."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    with writing(path):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, file_mode)
        try:
            try:
                os.fchmod(descriptor, file_mode)  # independent of the umask
                write_all(descriptor, content)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def remove_unfinished(path: Path) -> None:
    """Remove what killed processes have left of `replace_file`; another process that is writing `path` now fails."""
    for temporary in path.parent.glob(f"{path.name}.*.new"):
        with writing(temporary):
            temporary.unlink(missing_ok=True)
