"""Several engines that run and end together: one for each node, with its own state, threads, position and retries."""

import os
import threading
from collections.abc import Sequence

from tidemark.embedding.engine import AN_ENGINE, POLL_S, Engine
from tidemark.embedding.hints import noted_hints
from tidemark.embedding.stoppable import Stoppable
from tidemark.engine.lifecycle import EngineState
from tidemark.model.arguments import WITHIN_S, checked_arguments, list_of
from tidemark.model.errors import ConfigError

WHERE = "tidemark.EngineGroup"


class EngineGroup(Stoppable):
    """Engines that start in order; when one ends, by an error or a stop, the others are stopped, the last one first.

    `with EngineGroup(orders, customers) as group: group.wait()` runs until one of them has ended and all have stopped.
    """

    @noted_hints()
    @checked_arguments(WHERE, {"engines": list_of(AN_ENGINE, "engines")})
    def __init__(self, *engines: Engine) -> None:
        """Check the arguments; start nothing."""
        if not engines or len({id(engine) for engine in engines}) != len(engines):
            raise ConfigError(f"{WHERE}: pass engines, each of them once")
        super().__init__()
        self._engines: Sequence[Engine] = engines
        self._ending = threading.Event()
        self._within_s: float | None = None
        self._unfinished: tuple[str, ...] = ()
        self._thread = threading.Thread(target=self._run, name="tidemark-group", daemon=True)

    def start(self) -> None:
        """Start the engines in order; if one fails, stop those before it and raise its error."""
        self._pid = os.getpid()
        for number, engine in enumerate(self._engines):
            try:
                engine.start()
            except BaseException:
                self._stop(self._engines[:number])
                raise
        self._thread.start()

    @noted_hints()
    @checked_arguments(f"{WHERE}.stop", {"within_s": WITHIN_S})
    def stop(self, within_s: float | None = None) -> tuple[str, ...]:
        """Stop all engines, each within `within_s`; return the names of threads that are still in a handler.

        A handler or a callback does not call this, but `stop` of its own engine, which ends the group as well.
        """
        self._check_process()
        if not self._ending.is_set():
            self._within_s = within_s
            self._ending.set()
        if self._thread.ident is not None:
            self._stopped.wait()
        return self._unfinished

    def _run(self) -> None:
        """Watch the engines until the first one ends; then stop the others."""
        ended: list[Engine] = []
        while not ended and not self._ending.wait(POLL_S):
            ended = [engine for engine in self._engines if engine.state is EngineState.STOPPED]
        self._error = next(filter(None, map(_error_of, ended)), None)
        self._unfinished = self._stop(self._engines)
        self._error = self._error or next(filter(None, map(_error_of, self._engines)), None)
        self._stopped.set()

    def _stop(self, engines: Sequence[Engine]) -> tuple[str, ...]:
        return tuple(name for engine in reversed(engines) for name in engine.stop(self._within_s))


def _error_of(engine: Engine) -> BaseException | None:
    """Return the error that ended an engine that has stopped."""
    try:
        engine.wait()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the group ends with it
        return error
    return None
