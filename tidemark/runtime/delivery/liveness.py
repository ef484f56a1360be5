"""The watch on a custom consumer: a consumer that died or hangs ends the capture instead of silencing it (I36).

A separate thread calls `alive()`, because the application thread may be the one that hangs. Every other call into the
consumer is timed, and an exception that it raises is the consumer's failure. The caller of `poll` detects a call that
takes too long: nothing here waits for the consumer. Time that the target spends waiting, for space or before the next
offer, is outside of these calls and is not a hang.
"""

import threading
from types import TracebackType
from typing import Self

from tidemark.engine.ports import Clock, GroupConsumer
from tidemark.io.host.clock import SystemClock
from tidemark.model.errors import OF_APPLICATION, ConsumerFailed, TidemarkError

POLL_S = 2.0


class ConsumerRaised(ConsumerFailed):
    """An error raised by the consumer, which may be gone at the next attempt."""


class Liveness:
    """The condition of a consumer, from its start to its end; also the context of each call into it (`calling`)."""

    def __init__(
        self, consumer: GroupConsumer, *, alive_s: float, hang_s: float, name: str = "", clock: Clock | None = None
    ) -> None:
        """Start nothing. `alive_s`: the time to answer `alive()`; `hang_s`: for any other call.

        `name`: of the consumer in messages; by default that of its class.
        """
        self._consumer = consumer
        self._name = name or type(consumer).__name__
        self._alive_s = alive_s
        self._hang_s = hang_s
        self._clock = clock or SystemClock()
        self._polled_s: float | None = None
        self._call: tuple[str, float] | None = None  # the running call, and since when
        self._error: ConsumerFailed | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="liveness", daemon=True)

    def start(self) -> None:
        """Start to poll."""
        self._thread.start()

    def stop(self) -> None:
        """Stop polling; an unanswered poll is waited for as long as any."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(self._alive_s)

    def calling(self, callback: str) -> Self:
        """Time a call into the consumer, and treat what it raises as its failure."""
        self._call = (callback, self._clock.monotonic_s())
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Record the end of the call; raise what its error means."""
        call, self._call = self._call, None
        if isinstance(error, OF_APPLICATION) and not isinstance(error, TidemarkError) and call is not None:
            raise ConsumerRaised(
                self._text(f"raised {type(error).__name__} in {call[0]}"), hint=ConsumerFailed.hint
            ) from error

    def error(self) -> ConsumerFailed | None:
        """Return the consumer's first error; from then on always that one."""
        if self._error is None:
            self._error = self._overdue()
        return self._error

    def _overdue(self) -> ConsumerFailed | None:
        now_s, polled_s, call = self._clock.monotonic_s(), self._polled_s, self._call
        if polled_s is not None and now_s - polled_s > self._alive_s:
            return self._failed(f"has not answered alive() within {self._alive_s:g} s", "see deliver.alive_s")
        if call is not None and now_s - call[1] > self._hang_s:
            return self._failed(f"has been in {call[0]} for over {self._hang_s:g} s", "see deliver.hang_s")
        return None

    def _run(self) -> None:
        while not self._stopping.is_set() and self._error is None:
            self._polled_s = self._clock.monotonic_s()
            self._error = self._poll() or self._error
            self._polled_s = None
            self._stopping.wait(POLL_S)

    def _poll(self) -> ConsumerFailed | None:
        try:
            alive = self._consumer.alive()
        except ConsumerFailed as error:
            return error
        except OF_APPLICATION as error:  # the consumer's own, whatever it is
            return self._failed(f"raised {type(error).__name__} in alive", ConsumerFailed.hint)
        return None if alive else self._failed("reports that it is not alive", ConsumerFailed.hint)

    def _failed(self, how: str, hint: str) -> ConsumerFailed:
        return ConsumerFailed(self._text(how), hint=hint)

    def _text(self, how: str) -> str:
        # NB: never the text of the consumer's own error: it may contain a row's values.
        return f"the consumer {self._name} {how}"
