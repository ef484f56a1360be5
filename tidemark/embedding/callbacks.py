"""The callbacks of an application about the life cycle of its engine and its stream, and its hook of commit rounds.

An error of a callback of the life cycle is logged and stops nothing; one of the hook, or of `on_loss` or `on_rewind`,
ends the engine. A thread that is in one of them requests a stop, and does not wait for it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from tidemark.engine.lifecycle import EngineState, StopStep
from tidemark.engine.offset_update import OffsetsHook, PartitionOffsets
from tidemark.io.host.logs import Log, describe_raised
from tidemark.wire.state.event_logs import Loss, Rewind


@dataclass(slots=True)
class Callbacks:
    """What the application gave, and which threads are in it."""

    log: Log
    on_state: Callable[[EngineState], None] | None
    on_stop_step: Callable[[StopStep], None] | None
    on_end: Callable[[BaseException | None], None] | None
    on_signal: Callable[[str], None] | None
    on_loss: Callable[[Loss], None] | None
    on_rewind: Callable[[Rewind], None] | None
    hook: OffsetsHook | None
    _passed: set[StopStep] = field(default_factory=set)
    _inside: set[threading.Thread] = field(default_factory=set)

    def is_inside(self, thread: threading.Thread) -> bool:
        """Return whether a thread is in a callback."""
        return thread in self._inside

    def changed(self, state: EngineState) -> None:
        """Report a change of the state."""
        if self.on_state is not None:
            self._call("on_state", partial(self.on_state, state))

    def passed(self, step: StopStep) -> None:
        """Report a step of the stop, once."""
        if step in self._passed:
            return
        self._passed.add(step)
        self.log.info("engine stops", step=step.value)
        if self.on_stop_step is not None:
            self._call("on_stop_step", partial(self.on_stop_step, step))

    def signalled(self, text: str) -> None:
        """Report a signal of the application's own."""
        if self.on_signal is not None:
            self._call("on_signal", partial(self.on_signal, text))

    def ended(self, error: BaseException | None) -> None:
        """Report the end, with the error that ended the engine."""
        if self.on_end is not None:
            self._call("on_end", partial(self.on_end, error))

    def noticed(self, event: Loss | Rewind) -> None:
        """Report a loss or a rewind; raise what the callback raises."""
        with self._calling():
            if isinstance(event, Loss) and self.on_loss is not None:
                self.on_loss(event)
            if isinstance(event, Rewind) and self.on_rewind is not None:
                self.on_rewind(event)

    @property
    def update_offsets(self) -> OffsetsHook | None:
        """The hook of commit rounds; None: there is none."""
        return None if self.hook is None else partial(self._update_offsets, self.hook)

    def _update_offsets(self, hook: OffsetsHook, positions: PartitionOffsets) -> PartitionOffsets | None:
        with self._calling():
            return hook(positions)

    def _call(self, name: str, call: Callable[[], None]) -> None:
        try:
            with self._calling():
                call()
        except Exception as error:  # noqa: BLE001 - the application's own: it must not keep the engine from stopping
            self.log.warning("a callback failed", callback=name, **describe_raised(error, name))

    @contextmanager
    def _calling(self) -> Iterator[None]:
        here = threading.current_thread()
        self._inside.add(here)
        try:
            yield
        finally:
            self._inside.discard(here)
