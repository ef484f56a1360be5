"""Progress of a requested copy of a table (`cdcctl table recopy`), and the request as the control socket carries it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from tidemark.model.lsn import Lsn, Oid, format_lsn, parse_lsn
from tidemark.wire.control import BadRequest, Json
from tidemark.wire.keys import parse_table, table_text
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress, Recopies, Recopy

REFUSED_HINT = "raise copy.spool_bytes, restart the sidecar, then run cdcctl table recopy TABLE, or exclude the table"
TableKey = tuple[Oid, Oid]  # database, relation


class RecopyStep(Enum):
    """The progress of a requested copy."""

    REQUESTED = "requested"  # the table's copy is unchanged
    QUEUED = "queued"  # the next capture copies the table before it streams
    COPYING = "copying"  # if it is killed, it starts again as the next generation
    DONE = "done"  # in the stream, with a later generation than at the request
    ENDED = "ended"  # without a copy: the table was dropped, or is not selected any more
    FAILED = "failed"  # the table cannot be copied; its copy is unchanged

    @property
    def is_over(self) -> bool:
        """Return whether the request has ended."""
        return self in (RecopyStep.DONE, RecopyStep.ENDED, RecopyStep.FAILED)


@dataclass(frozen=True, slots=True)
class RequestedTable:
    """A table that is to be copied again, by its OIDs and its name at the time of the request."""

    key: TableKey
    name: str


def step_of(request: Recopy, copy: CopyProgress | None) -> RecopyStep:
    """Return the step of a request, from the progress of the table's copy."""
    if copy is not None and copy.phase is CopyPhase.DONE and copy.generation > request.generation:
        return RecopyStep.DONE
    if request.failed:
        return RecopyStep.FAILED
    if not request.is_queued:
        return RecopyStep.REQUESTED
    if copy is None or not copy.is_open:
        return RecopyStep.ENDED
    return RecopyStep.COPYING if copy.phase is CopyPhase.COPYING else RecopyStep.QUEUED


def recopies_by_table(requests: Recopies) -> dict[TableKey, Recopy]:
    """Return the requests by their tables' OIDs."""
    return {parse_table(name): request for name, request in requests.tables.items()}


def recopies_of(requests: Mapping[TableKey, Recopy]) -> Recopies:
    """Return the requests in the state's form."""
    return Recopies({table_text(*key): request for key, request in requests.items()})


def encode_request(requested: Iterable[RequestedTable], after_lsn: Lsn) -> dict[str, Json]:
    """Return the request as the control socket carries it."""
    tables: list[Json] = [[*table.key, table.name] for table in requested]
    return {"tables": tables, "after_lsn": format_lsn(after_lsn)}


def decode_request(content: Mapping[str, Json]) -> tuple[list[RequestedTable], Lsn]:
    """Return what `encode_request` wrote; raise `BadRequest` for anything else."""
    tables, after_lsn = content.get("tables"), content.get("after_lsn")
    requested: list[RequestedTable] = []
    for table in tables if isinstance(tables, list) else [None]:
        match table:
            case [int(database), int(relation), str(name)]:
                requested.append(RequestedTable((Oid(database), Oid(relation)), name))
            case _:
                raise BadRequest(f"not a table to be copied: {table!r}")
    if not isinstance(after_lsn, str):
        raise BadRequest(f"not an LSN: {after_lsn!r}")
    return requested, parse_lsn(after_lsn)


def encode_cancellation(keys: Iterable[TableKey]) -> dict[str, Json]:
    """Return a cancellation as the control socket carries it."""
    tables: list[Json] = [[*key] for key in keys]
    return {"tables": tables}


def decode_cancellation(content: Mapping[str, Json]) -> list[TableKey]:
    """Return what `encode_cancellation` wrote; raise `BadRequest` for anything else."""
    found: list[TableKey] = []
    tables = content.get("tables")
    for table in tables if isinstance(tables, list) else [None]:
        match table:
            case [int(database), int(relation)]:
                found.append((Oid(database), Oid(relation)))
            case _:
                raise BadRequest(f"not a table: {table!r}")
    return found


def encode_generations(generations: Mapping[TableKey, int]) -> dict[str, Json]:
    """Return the answer to a request as the control socket carries it."""
    return {"generations": [[*key, generation] for key, generation in generations.items()]}


def decode_generations(content: Mapping[str, Json]) -> dict[TableKey, int]:
    """Return what `encode_generations` wrote; raise `BadRequest` for anything else."""
    found: dict[TableKey, int] = {}
    rows = content.get("generations")
    for row in rows if isinstance(rows, list) else [None]:
        match row:
            case [int(database), int(relation), int(generation)]:
                found[Oid(database), Oid(relation)] = generation
            case _:
                raise BadRequest(f"not a generation: {row!r}")
    return found
