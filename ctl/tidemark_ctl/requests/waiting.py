"""Shared by commands that wait for a daemon: the deadline's error, the report of the current wait, repeated queries."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidemark.model.errors import TidemarkError

POLL_S = 0.1
REPEAT_S = 10.0  # interval of repeated reports
QUERY_S = 1.0  # interval of a query that is repeated during a wait
AnswerT = TypeVar("AnswerT")
Echo = Callable[[str], None]


class NotComplete(TidemarkError):
    """The deadline passed, or the request cannot be completed."""

    hint = "completed steps remain: run the command again to wait; see `cdcctl realtime status`"


@dataclass(slots=True)
class WaitReport:
    """Prints the reason for a wait when it changes, and at intervals."""

    echo: Echo
    _about: str = ""
    _at_s: float = 0.0

    def report(self, about: str, text: str) -> None:
        """Print `text`, unless the last line was about the same subject and is recent."""
        now_s = time.monotonic()
        if about != self._about or now_s - self._at_s >= REPEAT_S:
            self._about, self._at_s = about, now_s
            self.echo(text)


class PolledAnswer(Generic[AnswerT]):
    """Keeps the latest answer; repeats the query when it is read, at most once every `QUERY_S`."""

    def __init__(self, begin_query: Callable[[], Future[AnswerT]]) -> None:
        self._begin_query = begin_query
        self._query: Future[AnswerT] | None = None
        self._queried_s = 0.0
        self._answer: AnswerT | TidemarkError | None = None

    def latest(self) -> AnswerT | TidemarkError | None:
        """Return the latest answer or error; None if there is none yet."""
        if self._query is not None and self._query.done():
            error = self._query.exception()
            if error is None:
                self._answer = self._query.result()
            elif isinstance(error, TidemarkError):
                self._answer = error
            else:
                raise error
            self._query = None
        now_s = time.monotonic()
        if self._query is None and now_s - self._queried_s >= QUERY_S:
            self._query, self._queried_s = self._begin_query(), now_s
        return self._answer
