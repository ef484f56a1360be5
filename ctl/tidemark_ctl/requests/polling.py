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

    def __init__(self, ask: Callable[[], Future[AnswerT]]) -> None:
        self._ask = ask
        self._asked: Future[AnswerT] | None = None
        self._asked_s = 0.0
        self._answer: AnswerT | TidemarkError | None = None

    def latest(self) -> AnswerT | TidemarkError | None:
        """Return the latest answer or error; None if there is none yet."""
        if self._asked is not None and self._asked.done():
            error = self._asked.exception()
            if error is None:
                self._answer = self._asked.result()
            elif isinstance(error, TidemarkError):
                self._answer = error
            else:
                raise error
            self._asked = None
        now_s = time.monotonic()
        if self._asked is None and now_s - self._asked_s >= EVERY_S:
            self._asked, self._asked_s = self._ask(), now_s
        return self._answer
