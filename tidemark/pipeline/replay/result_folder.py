"""The folder of a result: it is written under another name beside it, and renamed when it is complete.

What a killed process left is removed by the next replay to the same place; a lock shows whether its process is alive.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemark.io.host.disk import sync
from tidemark.io.host.file_locks import lock_file
from tidemark.pipeline.replay.refusal import TargetExists, TargetInUse, writing_result

LOCK = "lock"


def check_target(to: Path) -> None:
    """Raise `TargetExists` if there is something at the place of the result."""
    if os.path.lexists(to):
        raise TargetExists(f"{to} exists")


@contextmanager
def unfinished_result(to: Path) -> Iterator[Path]:
    """Create a folder beside `to` for what is not complete; it is removed at the end, also after an error."""
    folder = to.parent / f".{to.name}.unfinished"
    with writing_result(to):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            with writing_result(to):
                _lock(descriptor, folder, to)
                _empty(folder)
            yield folder
        except TargetInUse:
            raise
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # NB: the error must not be replaced by one of the removal
            raise
        with writing_result(to):
            shutil.rmtree(folder)
    finally:
        os.close(descriptor)


def publish(result: Path, to: Path) -> None:
    """Give a complete result its name; raise `TargetExists` if it was given to something else meanwhile."""
    check_target(to)
    result.rename(to)
    sync(to.parent)


def _lock(descriptor: int, folder: Path, to: Path) -> None:
    try:
        lock_file(descriptor)
    except BlockingIOError:
        raise TargetInUse(f"another replay writes {to}") from None
    try:
        is_same = (folder / LOCK).stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        is_same = False
    if not is_same:  # the other one ended, and removed its folder before this lock
        raise TargetInUse(f"another replay has just written {to}")


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != LOCK:
            shutil.rmtree(path)
