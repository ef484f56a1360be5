"""Which process delivers, and how delivery passes on: one table for both processes (I12, I16, I17).

              a stop: ring, consumer, WAL, decoder; sidecar lost
     +----------------------------------------------------------+
     |                                                          v
 +----------+   takes over   +----------+   marker   +-----------+  wanted  +---------+   off    +------+
 | REALTIME | <------------- | RETURNED | <--------- | RETURNING | <------- | ARCHIVE | <------> | HELD |
 +----------+                +----------+  reached   +-----------+          +---------+    on    +------+
     |  ^  ^                       |                       |                     ^
     |  |  |                       +-----------------------+---------------------+
     |  |  |                            a stop; sidecar lost (off: to HELD)
     |  |  +--- archive stalled: from RETURNING and ARCHIVE
     v  | promoted
 +----------+
 | FOLLOWER |    demoted: from any stage
 +----------+

The sidecar delivers in REALTIME, no process in RETURNED and FOLLOWER, the archiver in all other stages. A transition is
one LMDB transaction that checks the epoch for which it was decided. The process that made the transition then performs
its effects. A crash can lose any of them: markers locate positions, but decide only if LMDB is missing. The hand-over
record, which the sidecar needs to take over, is written in the transaction that moves to RETURNED.

If the archive stalls, the sidecar does not wait for a marker: with ARCHIVE_STALLED it takes the epoch, which fences
the archiver, and decodes the node's own WAL from the restart LSN of the delivered pointer. The H of this hand-over is
the start of the epoch, so it needs no hand-over record.
"""

from dataclasses import dataclass
from enum import Enum

from tidemark.model.errors import ConfigError
from tidemark.model.mode import Stage


class Event(Enum):
    """An event in the life of a capture."""

    RING_FULL = "the ring is full"
    CONSUMER_FAILED = "the consumer failed"
    WAL_REMOVED = "the node has removed WAL that is needed"
    DECODE_FAILED = "decoding failed"
    OUT_OF_REACH = "the node cannot be reached, but its archive grows"
    SIDECAR_LOST = "the sidecar has ended"  # its lock is free; a remaining process is killed
    OPERATOR_OFF = "the operator switched realtime off"
    OPERATOR_ON = "the operator switched realtime on"
    RETURN_READY = "the sidecar is ready to deliver again"  # it buffers the stream, and the archiver's lag is small
    MARKER_REACHED = "the archiver has reached the try-start marker"
    TAKEN_OVER = "the sidecar continues from the ring"
    ARCHIVE_STALLED = "the archive does not grow, and the node has the WAL"
    DEMOTED = "the node is a standby"
    PROMOTED = "the node was promoted"


class Effect(Enum):
    """What the process that made the transition does after it, in the order of the tuple."""

    STOP_CAPTURE = "stop capture and save what is confirmed"
    WRITE_STOP_MARKER = "write a stop marker"
    WRITE_TRY_START_MARKER = "write a try-start marker"
    SWITCH_SEGMENT = "switch the segment if permitted"
    RETURN_SOON = "return without the back-off"
    FIND_START = "find the start from the target and the markers"


@dataclass(frozen=True, slots=True)
class Move:
    """The next stage, and the effects to perform once it is durable."""

    stage: Stage
    effects: tuple[Effect, ...] = ()


class Refused(ConfigError):
    """An event that the stage does not allow."""

    def __init__(self, stage: Stage, event: Event) -> None:
        super().__init__(
            f"{event.value}, but {REFUSED[stage, event]}",
            hint=f"the capture is in stage {stage.value}: see cdcctl status",
        )


STOPS = (Event.RING_FULL, Event.CONSUMER_FAILED, Event.WAL_REMOVED, Event.DECODE_FAILED, Event.OUT_OF_REACH)
_STOP_AND_MARK = (Effect.STOP_CAPTURE, Effect.WRITE_STOP_MARKER, Effect.SWITCH_SEGMENT)
_MARK = (Effect.WRITE_STOP_MARKER, Effect.SWITCH_SEGMENT)

NEXT: dict[tuple[Stage, Event], Move] = {
    **{(Stage.REALTIME, stop): Move(Stage.ARCHIVE, _STOP_AND_MARK) for stop in STOPS},
    (Stage.REALTIME, Event.SIDECAR_LOST): Move(Stage.ARCHIVE),
    (Stage.REALTIME, Event.OPERATOR_OFF): Move(Stage.HELD, _STOP_AND_MARK),
    (Stage.REALTIME, Event.OPERATOR_ON): Move(Stage.REALTIME),
    (Stage.REALTIME, Event.DEMOTED): Move(Stage.FOLLOWER, (Effect.STOP_CAPTURE,)),
    (Stage.ARCHIVE, Event.SIDECAR_LOST): Move(Stage.ARCHIVE),
    (Stage.ARCHIVE, Event.OPERATOR_OFF): Move(Stage.HELD),
    (Stage.ARCHIVE, Event.OPERATOR_ON): Move(Stage.ARCHIVE, (Effect.RETURN_SOON,)),
    (Stage.ARCHIVE, Event.RETURN_READY): Move(Stage.RETURNING, (Effect.WRITE_TRY_START_MARKER, Effect.SWITCH_SEGMENT)),
    (Stage.ARCHIVE, Event.ARCHIVE_STALLED): Move(Stage.REALTIME),
    (Stage.ARCHIVE, Event.DEMOTED): Move(Stage.FOLLOWER),
    (Stage.HELD, Event.SIDECAR_LOST): Move(Stage.HELD),
    (Stage.HELD, Event.OPERATOR_OFF): Move(Stage.HELD),
    (Stage.HELD, Event.OPERATOR_ON): Move(Stage.ARCHIVE, (Effect.RETURN_SOON,)),
    (Stage.HELD, Event.DEMOTED): Move(Stage.FOLLOWER),
    **{(Stage.RETURNING, stop): Move(Stage.ARCHIVE, _MARK) for stop in STOPS},
    (Stage.RETURNING, Event.SIDECAR_LOST): Move(Stage.ARCHIVE),
    (Stage.RETURNING, Event.OPERATOR_OFF): Move(Stage.HELD, _MARK),
    (Stage.RETURNING, Event.OPERATOR_ON): Move(Stage.RETURNING),
    (Stage.RETURNING, Event.MARKER_REACHED): Move(Stage.RETURNED),
    (Stage.RETURNING, Event.ARCHIVE_STALLED): Move(Stage.REALTIME),
    (Stage.RETURNING, Event.DEMOTED): Move(Stage.FOLLOWER),
    **{(Stage.RETURNED, stop): Move(Stage.ARCHIVE, _MARK) for stop in STOPS},
    (Stage.RETURNED, Event.SIDECAR_LOST): Move(Stage.ARCHIVE),
    (Stage.RETURNED, Event.OPERATOR_OFF): Move(Stage.HELD, _MARK),
    (Stage.RETURNED, Event.OPERATOR_ON): Move(Stage.RETURNED),
    (Stage.RETURNED, Event.TAKEN_OVER): Move(Stage.REALTIME),
    (Stage.RETURNED, Event.DEMOTED): Move(Stage.FOLLOWER),
    (Stage.FOLLOWER, Event.SIDECAR_LOST): Move(Stage.FOLLOWER),
    (Stage.FOLLOWER, Event.DEMOTED): Move(Stage.FOLLOWER),
    (Stage.FOLLOWER, Event.PROMOTED): Move(Stage.REALTIME, (Effect.FIND_START,)),
}

_SWITCHED_OFF = "an operator switched realtime off: run cdcctl realtime on"
_ON_STANDBY = "this node is a standby: run the command at the primary"
REFUSED: dict[tuple[Stage, Event], str] = {
    (Stage.REALTIME, Event.RETURN_READY): "the sidecar delivers already",
    (Stage.REALTIME, Event.MARKER_REACHED): "the sidecar delivers already",
    (Stage.REALTIME, Event.TAKEN_OVER): "the sidecar delivers already",
    (Stage.REALTIME, Event.ARCHIVE_STALLED): "the sidecar delivers already",
    **{(Stage.ARCHIVE, stop): "the archiver delivers already" for stop in STOPS},
    (Stage.ARCHIVE, Event.MARKER_REACHED): "no return waits for the marker",
    (Stage.ARCHIVE, Event.TAKEN_OVER): "the archiver still delivers",
    **{(Stage.HELD, stop): "the archiver delivers already" for stop in STOPS},
    (Stage.HELD, Event.RETURN_READY): _SWITCHED_OFF,
    (Stage.HELD, Event.MARKER_REACHED): "no return waits for the marker",
    (Stage.HELD, Event.TAKEN_OVER): "the archiver still delivers",
    (Stage.HELD, Event.ARCHIVE_STALLED): _SWITCHED_OFF,
    (Stage.RETURNING, Event.RETURN_READY): "a return is already in progress",
    (Stage.RETURNING, Event.TAKEN_OVER): "the archiver has not reached the marker",
    (Stage.RETURNED, Event.RETURN_READY): "a return is already in progress",
    (Stage.RETURNED, Event.MARKER_REACHED): "the marker was reached before",
    (Stage.RETURNED, Event.ARCHIVE_STALLED): "the archiver has reached the marker",
    **{(Stage.FOLLOWER, stop): "a standby delivers nothing" for stop in STOPS},
    (Stage.FOLLOWER, Event.OPERATOR_OFF): _ON_STANDBY,
    (Stage.FOLLOWER, Event.OPERATOR_ON): _ON_STANDBY,
    (Stage.FOLLOWER, Event.RETURN_READY): _ON_STANDBY,
    (Stage.FOLLOWER, Event.MARKER_REACHED): "a standby delivers nothing",
    (Stage.FOLLOWER, Event.TAKEN_OVER): "a standby delivers nothing",
    (Stage.FOLLOWER, Event.ARCHIVE_STALLED): _ON_STANDBY,
    **{(stage, Event.PROMOTED): "the node was not a standby" for stage in Stage if stage is not Stage.FOLLOWER},
}


def move(stage: Stage, event: Event) -> Move:
    """Return the transition for `event` in `stage`; raise `Refused` with the reason if it is not allowed."""
    found = NEXT.get((stage, event))
    if found is None:
        raise Refused(stage, event)
    return found
