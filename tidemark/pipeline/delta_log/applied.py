"""The position up to which a table of the lake contains all changes, as the commits of the table record it.

Each commit contains Delta application transactions (numbers with names): the sequence of the last outbox value in it,
and the position of the last change as timeline, LSN and ordinal. The position is authoritative, because it means the
same in every outbox; the sequence continues the numbers. Names contain capture and table: a new outbox finds them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from deltalake import CommitProperties, Transaction

from tidemark.model.lsn import Lsn, TimelineId
from tidemark.model.position import NO_SEQUENCE, Position, Sequence
from tidemark.pipeline.delta_log.commits import MARK, TOKEN, mark_of

POSITION = "tidemark.position"  # in `commitInfo`, for people: the table's history shows it beside each version
BEFORE_ALL = Position(TimelineId(0), Lsn(0), 0)
"""Below every position: timelines count from 1."""


@dataclass(frozen=True, slots=True)
class Applied:
    """All changes of a table up to `position`, which came as the outbox value `sequence`."""

    sequence: Sequence
    position: Position
    generation: int = 0  # of the first copy; a greater number replaces all rows
    copy_sequence: Sequence = NO_SEQUENCE  # of the value that began a copy that has not ended; else 0
    blocked: bool = False  # a replica that stopped at a change of an unidentified row


NOTHING = Applied(NO_SEQUENCE, BEFORE_ALL)


def read_applied(version_of: Callable[[str], int | None], app: str) -> Applied:
    """Read a table's applied position from its application transactions; `NOTHING` if it never had one."""

    def number(name: str) -> int:
        return version_of(f"{app}:{name}") or 0

    return Applied(
        Sequence(number("sequence")),
        Position(TimelineId(number("timeline")), Lsn(number("lsn")), number("ordinal")),
        number("generation"),
        Sequence(number("copy")),
        bool(number("blocked")),
    )


def transactions_of(app: str, applied: Applied, token: int) -> dict[str, int]:
    """Return the application transactions of a commit that sets the table's position to `applied`."""
    versions = {
        "sequence": applied.sequence,
        "timeline": applied.position.timeline,
        "lsn": applied.position.commit_lsn,
        "ordinal": applied.position.ordinal,
        "generation": applied.generation,
        "copy": applied.copy_sequence,
        "blocked": int(applied.blocked),
        TOKEN: token,
    }
    return {f"{app}:{name}": version for name, version in versions.items()}


def metadata_of(app: str, applied: Applied, token: int) -> dict[str, str]:
    """Return the fields of `commitInfo` that mark a commit of Tidemark; `token` identifies the commit."""
    return {MARK: mark_of(app, token), POSITION: str(applied.position)}


def commit_properties(app: str, applied: Applied, token: int) -> CommitProperties:
    """Return delta-rs's properties of a commit that sets the table's position to `applied`."""
    # NB: no retry by delta-rs. A conflict means that another driver wrote; its commit must be read first.
    return CommitProperties(
        app_transactions=[Transaction(*of) for of in transactions_of(app, applied, token).items()],
        custom_metadata=dict(metadata_of(app, applied, token)),
        max_commit_retries=0,
    )
