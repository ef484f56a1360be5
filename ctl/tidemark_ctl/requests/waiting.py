"""Shared by commands that wait for a daemon: the deadline's error, and the report of the current wait."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from tidemark.model.errors import TidemarkError

POLL_S = 0.1
REPEAT_S = 10.0  # how often it is said again what is waited for
Say = Callable[[str], None]


class NotComplete(TidemarkError):
    """The deadline passed, or what was asked for cannot become complete by itself."""

    hint = "completed steps remain: run the command again to wait; see `cdcctl realtime status`"


@dataclass(slots=True)
class Reported:
    """Says what is waited for: when it changes, and now and then."""

    say: Say
    _about: str = ""
    _at_s: float = 0.0

    def tell(self, about: str, text: str) -> None:
        """Say `text`, unless the last word was about the same and is fresh."""
        now_s = time.monotonic()
        if about != self._about or now_s - self._at_s >= REPEAT_S:
            self._about, self._at_s = about, now_s
            self.say(text)
