"""A query to the node that is repeated during a wait."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from tidemark.model.errors import TidemarkError

EVERY_S = 1.0
AnswerT = TypeVar("AnswerT")


class PolledAnswer(Generic[AnswerT]):
    """Keeps the latest answer; repeats the query when it is read, at most once every `EVERY_S`."""

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
        if self._query is None and now_s - self._queried_s >= EVERY_S:
            self._query, self._queried_s = self._begin_query(), now_s
        return self._answer
