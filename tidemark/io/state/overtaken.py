"""The error for a state that another copy of it has overtaken (I21)."""

from tidemark.model.errors import Fenced
from tidemark.model.lsn import format_lsn
from tidemark.wire.state.values import Overtaken


class OvertakenState(Fenced):
    """Another copy of this state delivers, according to its marker in WAL."""

    hint = (
        "only one state may deliver a capture: remove this copy. If this is the state that should deliver, stop "
        "the processes on the other one, then start this one once with --moved: changes that the other one "
        "delivered are delivered again"
    )

    def __init__(self, found: Overtaken) -> None:
        super().__init__(
            f"fenced by the marker at {format_lsn(found.lsn)}, timeline {found.timeline}: incarnation "
            f"{found.rival} (epoch {found.rival_epoch}) delivers this capture from another copy of the state; "
            f"this state has incarnation {found.incarnation} and epoch {found.epoch or 'none'}"
        )


def check_not_overtaken(found: Overtaken | None) -> None:
    """Raise `OvertakenState` if a marker fences this state."""
    if found is not None:
        raise OvertakenState(found)
