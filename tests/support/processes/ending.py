"""Processes of a test that end with it, also if it fails."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import AnyStr


@contextmanager
def ended(process: subprocess.Popen[AnyStr]) -> Iterator[subprocess.Popen[AnyStr]]:
    """Kill a process that still runs at the end. NB: the context of `Popen` waits for it without a bound."""
    with process:
        try:
            yield process
        finally:
            process.kill()
