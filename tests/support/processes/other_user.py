"""Acting as another Unix user, which requires root."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

NOBODY = 65534


@contextmanager
def acting_as_nobody() -> Iterator[None]:
    """Run the body of this process with the rights of `nobody`."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
