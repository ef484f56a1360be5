"""A process that cannot open anything."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let every open of this process fail with EMFILE.

    NB: with a limit of 0 each `poll` fails too, and ends the servers that tests have in threads.
    """
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/", os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
