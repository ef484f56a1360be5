"""Shared by commands that wait for a daemon: the deadline's error, and the report of the current wait."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from tidemark.model.errors import TidemarkError

POLL_S = 0.1
REPEAT_S = 10.0  # interval of repeated reports
Say = Callable[[str], None]


class NotComplete(TidemarkError):
    """The deadline passed, or the request cannot be completed."""

    hint = "completed steps remain: run the command again to wait; see `cdcctl realtime status`"


@dataclass(slots=True)
class Reported:
    """Prints the reason for a wait when it changes, and at intervals."""

    say: Say
    _about: str = ""
    _at_s: float = 0.0

    def report(self, about: str, text: str) -> None:
        """Print `text`, unless the last line was about the same subject and is recent."""
        now_s = time.monotonic()
        if about != self._about or now_s - self._at_s >= REPEAT_S:
            self._about, self._at_s = about, now_s
            self.say(text)
