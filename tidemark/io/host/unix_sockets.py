"""Addresses of unix sockets: the kernel takes at most 107 bytes of a path, and a path can have 4,096."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATH_BYTES_MAX = 107  # sockaddr_un.sun_path is 108 bytes with its zero


def is_too_long(path: Path) -> bool:
    """Return whether a path cannot be the address of a unix socket."""
    return len(os.fsencode(path)) > PATH_BYTES_MAX


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Yield an address at which `bind` and `connect` find a path of any length: its folder is opened meanwhile."""
    if not is_too_long(path):
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
