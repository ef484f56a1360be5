"""Poison, a change that a handler cannot handle: the policies, and the errors by which it is found."""

from dataclasses import dataclass
from enum import Enum

from tidemark.model.errors import ConsumerFailed, Disposition, TidemarkError


class Poison(Enum):
    """What happens to a change that a handler cannot handle, after all retries."""

    FAIL = "fail"  # the engine ends with the error of the handler
    SKIP = "skip"  # position, table and reason are recorded, and the stream continues
    PARK = "park"  # the change is stored separately, for `cdcctl parked`, and the stream continues


class PoisonChange(ConsumerFailed):
    """Raised by a handler: one change of its call cannot be handled, and a retry is useless."""

    hint = "correct the handler, or choose another policy for poison"

    def __init__(self, index: int = 0, reason: str = "", *, item: int = 0) -> None:
        """`index`: of the change in the batch. `reason`: without values of rows, because the log shows it.

        item: of a `Delivery` with several items, the number of the batch, from 0.
        """
        super().__init__(f"the handler cannot handle change {index} of item {item}: {reason or 'no reason given'}")
        self.index = index
        self.item = item
        self.reason = reason


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """How far a worker process came in a batch before its error. Only a handler of single changes has any."""

    rows_handled: int = 0  # the first rows of the batch, whose changes are handled
    is_new: bool = False  # some of them in this call
    is_one_change: bool = False  # the error is that of the change behind them


class WorkerRaised(ConsumerFailed):
    """The handler or the serializer raised in a worker process; the cause of an error of Tidemark that it raised."""

    hint = "the error is in the handler: correct it; unconfirmed changes are delivered again after a restart"

    def __init__(self, kind: str, text: str, *, disposition: Disposition, progress: WorkerProgress) -> None:
        """`kind`: the class of the error. `text`: may have values of rows."""
        super().__init__(f"{kind} raised in a worker process")
        self.add_note(text)  # NB: not in the message, which is logged
        self.kind = kind
        self.progress = progress
        self.disposition = disposition


class WorkerPoison(PoisonChange):
    """The handler raised `PoisonChange` in a worker process."""

    def __init__(self, index: int, reason: str, *, item: int, progress: WorkerProgress) -> None:
        super().__init__(index, reason, item=item)
        self.progress = progress


def may_be_poison(error: Exception) -> bool:
    """Return whether an error of a handler may be that of a change: errors that are final are not."""
    is_final = isinstance(error, TidemarkError) and error.disposition is not Disposition.RETRY
    return not is_final or isinstance(error, PoisonChange)
