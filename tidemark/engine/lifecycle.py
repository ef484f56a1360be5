"""The states of an engine that an application embeds, and its legal transitions: one table.

 +---------+  start  +-----------+  state opened  +----------+  threads run  +---------+
 | CREATED | ------> | PREPARING | -------------> | STARTING | ------------> | RUNNING |
 +---------+         +-----------+                +----------+               +---------+
      |                    |                           |                      |      stop, an error
      | stop               | an error                  | an error             v
      |                    |                           |                 +----------+
      |                    +---------------------------+                 | DRAINING |
      |                                  |                               +----------+
      |                                  v                                    |  the pool has ended
      |                              +---------+                              |
      |                              | CLOSING | <----------------------------+
      |                              +---------+
      |                                  |  positions are stored, everything is released
      v                                  v
 +------------------------------------------+
 |                  STOPPED                 |   final: a new run needs a new engine
 +------------------------------------------+

The caller of a transition names the state that it expects (compare and set): of two threads that decide at the same
time, one succeeds, and the other gets `IllegalTransition`.
"""

from enum import Enum

from tidemark.model.errors import ConfigError


class EngineState(Enum):
    """The state of an engine."""

    CREATED = "created"  # nothing is opened
    PREPARING = "preparing"  # creates or opens its state; needs the node if the state is new
    STARTING = "starting"  # loads the catalogs and starts the threads
    RUNNING = "running"
    DRAINING = "draining"  # the pool finishes its current batches
    CLOSING = "closing"  # stores the last position, then ends the source
    STOPPED = "stopped"


class StopStep(Enum):
    """The completed steps of a stop, in this order, also after a failed start: everything that was opened is closed."""

    POOL = "the pool has ended"  # no handler is called any longer
    POSITIONS = (
        "the last position is stored"  # the position of the finished changes is stored, if there was enough time
    )
    SOURCE = "the source has ended"  # its connections are closed, and its threads have ended
    STATE = "the state is closed"  # another process can open it


class IllegalTransition(ConfigError):
    """A call that the state of the engine does not allow."""

    hint = "an engine starts once; after STOPPED, create another one on the same state"

    def __init__(self, now: EngineState, wanted: EngineState) -> None:
        super().__init__(f"the engine is {now.value}: it cannot change to {wanted.value}")


NEXT: dict[EngineState, frozenset[EngineState]] = {
    EngineState.CREATED: frozenset({EngineState.PREPARING, EngineState.STOPPED}),
    EngineState.PREPARING: frozenset({EngineState.STARTING, EngineState.CLOSING}),
    EngineState.STARTING: frozenset({EngineState.RUNNING, EngineState.CLOSING}),
    EngineState.RUNNING: frozenset({EngineState.DRAINING}),
    EngineState.DRAINING: frozenset({EngineState.CLOSING}),
    EngineState.CLOSING: frozenset({EngineState.STOPPED}),
    EngineState.STOPPED: frozenset(),
}


def change(now: EngineState, expected: EngineState, wanted: EngineState) -> EngineState:
    """Return `wanted`, if the engine is in the expected state and the table allows it; else raise."""
    if now is not expected or wanted not in NEXT[now]:
        raise IllegalTransition(now, wanted)
    return wanted
