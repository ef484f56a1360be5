"""A disk of a few megabytes that really fills up: a tmpfs, which can be resized while it is used.

Mounting requires root, which CI and containers have.
"""

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

MOUNT_S = 60
FILL_TRIES = 20
FILL_AGAIN_S = 0.002
BLOCK_BYTES = 4096
needs_mount = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")


class SmallDisk:
    """A mounted tmpfs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._ballast = root / "ballast"

    def resize(self, size_bytes: int, *, files_max: int = 0) -> None:
        """Change its size."""
        _run("mount", "-o", f"remount,size={size_bytes},nr_inodes={files_max}", str(self.root))

    def set_writable(self, *, writable: bool) -> None:
        """Remount it read-only, as a system does after disk errors, or writable; no file may be open for writing."""
        _run("mount", "-o", f"remount,{'rw' if writable else 'ro'}", str(self.root))

    def fill(self, *, leave_bytes: int = 0) -> None:
        """Write a file over the free space, except for `leave_bytes`."""
        with self._ballast.open("ab") as file:
            for _ in range(FILL_TRIES):
                stat = os.statvfs(self.root)
                wanted = stat.f_bfree * stat.f_frsize - leave_bytes
                if wanted <= 0:
                    break
                with suppress(OSError):  # others write at the same time
                    os.posix_fallocate(file.fileno(), file.tell(), wanted)
                    break

    def empty(self) -> None:
        """Remove that file."""
        self._ballast.unlink()

    @contextmanager
    def kept_full(self) -> Iterator[None]:
        """Keep it full, whatever others delete meanwhile; empty it at the end."""
        is_over = threading.Event()

        def fill_again() -> None:
            while not is_over.wait(FILL_AGAIN_S):
                self.fill()

        self.fill()
        filling = threading.Thread(target=fill_again, daemon=True)
        filling.start()
        try:
            yield
        finally:
            is_over.set()
            filling.join()
            self.empty()


@contextmanager
def read_only(*folders: Path) -> Iterator[None]:
    """Mount folders over themselves, read-only: reads continue, and every write fails."""
    with ExitStack() as stack:
        for folder in folders:
            _run("mount", "--bind", str(folder), str(folder))
            stack.callback(_run, "umount", "--lazy", str(folder))  # a process may use it
            _run("mount", "-o", "remount,ro,bind", str(folder))
        yield


@contextmanager
def small_disk(root: Path, size_bytes: int, *, files_max: int = 0) -> Iterator[SmallDisk]:
    """Mount a disk at `root`; it is removed at the end. `files_max` is its limit of inodes; 0: no limit."""
    root.mkdir()
    options = f"size={size_bytes},mode=0700,nr_inodes={files_max}"
    _run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(root))
    try:
        yield SmallDisk(root)
    finally:
        _run("umount", "--lazy", str(root))  # lazy: a process that a failed test left may still use it


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=MOUNT_S)
