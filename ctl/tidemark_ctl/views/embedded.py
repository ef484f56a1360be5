"""States that belong to an engine in an application: it has no control socket, and no daemon delivers from them."""

from dataclasses import dataclass

from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.model.errors import ConfigError
from tidemark.model.mode import Role

START_HINT = "start the application that contains the engine"
CONTROL_HINT = "in the application, engine.stop() ends it, and engine.signal() pauses and resumes its handler"


class BelongsToEngine(ConfigError):
    """A command for daemons, with the state of an engine."""

    hint = CONTROL_HINT


@dataclass(frozen=True, slots=True)
class EmbeddedEngine:
    """The engine that a state belongs to."""

    pid: int | None  # of the application; None: the engine does not run

    def __str__(self) -> str:
        return f"an engine in process {self.pid}" if self.is_running else "an engine, which does not run"

    @property
    def is_running(self) -> bool:
        """Return whether a process has the state open as its engine."""
        return self.pid is not None

    @property
    def hint(self) -> str:
        """Return how to control the engine."""
        return CONTROL_HINT if self.is_running else START_HINT


def embedded_engine(store: StateStore) -> EmbeddedEngine | None:
    """Return the engine that a state belongs to; None if it belongs to daemons, or nothing has started."""
    lock = RoleLock.status(store.folder, Role.SIDECAR.value)
    plugins = store.plugins()
    if plugins is None or not plugins.is_embedded:
        return None
    uses = plugins.uses.get(Role.SIDECAR.value)
    if not lock.is_locked or lock.owner is None or uses is None or uses.owner != lock.owner:
        return EmbeddedEngine(None)  # NB: commands take the lock too; an engine records itself once it has the lock
    return EmbeddedEngine(lock.owner.pid)


def refuse_engine(store: StateStore, why: str) -> None:
    """Raise `BelongsToEngine` if the state belongs to an engine; `why`: what the command needs and the engine lacks."""
    if (engine := embedded_engine(store)) is not None:
        raise BelongsToEngine(f"this state belongs to {engine}: {why}", hint=engine.hint)


def refuse_running_engine(store: StateStore) -> None:
    """Raise `BelongsToEngine` if an engine runs over the state: the command writes what a running engine keeps."""
    engine = embedded_engine(store)
    if engine is not None and engine.is_running:
        raise BelongsToEngine(
            f"this state belongs to {engine}, and the command needs a stopped engine",
            hint="call engine.stop() in the application or end its process, then repeat the command",
        )
