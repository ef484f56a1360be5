"""The port between the streaming query and a lake: one implementation for each format of the lake's tables.

The query reads batches and retries after failures; a landing writes each portion of a batch, and confirms to the
outbox what the lake contains. It is used by one thread at a time.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from tidemark.io.host.logs import Log
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.lake.positions.table_position import TableId, TablePosition
from tidemark.pipeline.landing.capture_port import CapturePort
from tidemark.pipeline.landing.feed import Feed
from tidemark.pipeline.landing.progress import PipelineProgress
from tidemark.pipeline.landing.settings import Settings
from tidemark.pipeline.sinks.executors.executor_files import FileWriters
from tidemark.pipeline.source.outbox_port import OutboxPort


@dataclass(frozen=True, slots=True, eq=False)
class LandingParts:
    """What a landing uses.

    `use_reader` registers the reader, once the lake was found to be this capture's: a reader that no pipeline uses
    holds values of the outbox. `writers` write the files of large runs into Delta tables, None: this process does.
    """

    settings: Settings
    outbox: OutboxPort
    capture: CapturePort
    progress: PipelineProgress
    log: Log
    use_reader: Callable[[], object]
    writers: FileWriters | None = None


class LakePositions(Protocol):
    """What a lake records as applied."""

    begins_late: str
    """Why the lake lacks the first values of its outbox; "": it has them."""

    @property
    def tables(self) -> Mapping[TableId, TablePosition]:
        """Return the position of each table that is not settled."""
        ...

    @property
    def settled(self) -> Mapping[TableId, TablePosition]:
        """Return those of dropped tables at which batches do not look."""
        ...

    @property
    def outbox(self) -> str:
        """Return the outbox of the last written batch; "" if there is none."""
        ...

    @property
    def applied(self) -> Applied:
        """Return the applied position of the whole lake."""
        ...

    def lake_id(self) -> str:
        """Return the id of this lake; a lake that replaces it in the same folder has another id."""
        ...


class Landing(Protocol):
    """Writes the changes of one outbox into one lake."""

    @property
    def positions(self) -> LakePositions:
        """Return what the lake contains."""
        ...

    @property
    def is_behind(self) -> bool:
        """Return whether there are tables that lack changes which the rest of the lake contains."""
        ...

    def open(self, is_over: Callable[[], bool]) -> None:
        """Open the lake again; long optional work on it ends once `is_over` returns true."""
        ...

    def land(self, feed: Feed) -> None:
        """Write a portion that the lake lacks, and confirm it to the outbox."""
        ...

    def end_portion(self) -> None:
        """Complete what depends on the report of a portion's progress."""
        ...

    def confirm(self) -> None:
        """Confirm to the outbox what the lake contains: it is not read again."""
        ...

    def catch_up(self, *, merges: bool = True, is_end: bool = False) -> bool:
        """Let tables that are behind catch up by one slice; return whether there was one.

        These are the resumed tables; without one, with `merges`, a deferred replica that is due. At the end each is.
        """
        ...

    def record_maintenance(self) -> None:
        """Record the results of maintenance without a batch."""
        ...

    def maintained(self) -> AbstractContextManager[None]:
        """Maintain the tables of the lake meanwhile."""
        ...

    def complete_maintenance(self, is_over: Callable[[], bool]) -> None:
        """Maintain all tables that are due, and record the results."""
        ...
