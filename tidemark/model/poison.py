"""Poison, a change that a handler cannot handle: the policies, and the error by which a handler names it."""

from enum import Enum

from tidemark.model.errors import ConsumerFailed, Disposition, TidemarkError


class Poison(Enum):
    """What happens to a change that a handler cannot handle, after all retries."""

    FAIL = "fail"  # the engine ends with the error of the handler
    SKIP = "skip"  # position, table and reason are recorded, and the stream goes on
    PARK = "park"  # the change is stored beside the stream, for `cdcctl parked`, and the stream goes on


class PoisonChange(ConsumerFailed):
    """Raised by a handler: one change of what it was called with cannot be handled, and a retry is useless."""

    hint = "correct the handler, or choose another policy for poison"

    def __init__(self, index: int = 0, reason: str = "", *, item: int = 0) -> None:
        """`index`: of the change in the batch. `reason`: without values of rows, because the log shows it.

        item: of a `Delivery` with several items, the number of the batch, from 0.
        """
        super().__init__(f"the handler cannot handle change {index} of item {item}: {reason or 'no reason given'}")
        self.index = index
        self.item = item
        self.reason = reason


def may_be_poison(error: Exception) -> bool:
    """Return whether an error of a handler may be that of a change: errors that are final are not."""
    is_final = isinstance(error, TidemarkError) and error.disposition is not Disposition.RETRY
    return not is_final or isinstance(error, PoisonChange)
