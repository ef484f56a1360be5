"""The end of a command by a signal: as by an exception, so that its processes and files are removed."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATED = 143  # 128 + SIGTERM, a shell's exit code


@contextmanager
def cleaning_up_at_sigterm() -> Iterator[None]:
    """End by an exception at SIGTERM, so that processes and files are removed."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
