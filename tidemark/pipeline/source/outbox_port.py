"""The outbox as the format reads it: of a state folder on this host, or of a server (`server=`).

`tidemark.io.readers.outbox.OutboxReader` and `tidemark.io.flight.flight_outbox.FlightOutbox` implement it; one suite of
tests checks both (`test_outbox_port`).
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from tidemark.model.lsn import Oid
from tidemark.model.position import Sequence
from tidemark.model.relation import Relation
from tidemark.pipeline.source.offsets import OutboxReplaced
from tidemark.wire.outbox import OutboxValue
from tidemark.wire.relations import SchemaVersion
from tidemark.wire.state.outbox_ledger import OutboxLedger
from tidemark.wire.state.readers import Reader, ReaderKind
from tidemark.wire.state.values import Beginning, Identity
from tidemark.wire.values import ValueHeader


class OutboxPort(Protocol):
    """Reads ranges (after, upto] of sequences, which begin and end at group ends, and registers readers."""

    identity: Identity

    @property
    def place(self) -> str:
        """Return where the outbox is, for messages."""

    @property
    def outbox_id(self) -> str:
        """Return the current name: sequences of another outbox are not valid here."""

    @property
    def outbox_bytes_max(self) -> int:
        """Return the bound of the outbox; a batch is at most half of it."""

    def ledger(self) -> OutboxLedger:
        """Return the contents: sequences trimmed+1..head."""

    def head(self) -> Sequence:
        """Return the sequence of the newest value."""

    def beginning(self) -> Beginning | None:
        """Return where the capture begins, with its databases and types."""

    def plan(self, after: Sequence, bytes_max: int) -> Sequence:
        """Return a group end after `after`: at least one group, then as many as fit into `bytes_max`."""

    def headers(self, after: Sequence, upto: Sequence) -> list[ValueHeader]:
        """Return the headers of a range; raise `OutboxTrimmed`."""

    def group_ends(self, after: Sequence) -> Iterator[ValueHeader]:
        """Yield the header of the last value of each group after `after`."""

    def read(
        self, after: Sequence, upto: Sequence, wanted: Callable[[ValueHeader], bool] | None = None
    ) -> Iterator[OutboxValue]:
        """Yield the values of a range; with `wanted` those that it accepts."""

    def relation(self, version: SchemaVersion) -> Relation:
        """Return the relation version with this number in headers."""

    def relations(self) -> dict[SchemaVersion, tuple[Oid, Relation]]:
        """Return every relation version with its database."""

    def registered(self, reader: str) -> Reader | None:
        """Return what a reader has confirmed; None if it is not registered."""

    def register(self, reader: str, *, is_required: bool = True, kind: ReaderKind = ReaderKind.UNSTATED) -> Reader:
        """Register a reader, or return the earlier confirmation; raise `OtherReaderKind`.

        For a query, this begins a run, and ends the confirmations of earlier runs.
        """

    def confirm(self, reader: str, applied: Sequence, replayable: Sequence, *, run: int = 0) -> Reader:
        """Record what the tables of a reader contain, and what is never requested again.

        Raises `ReaderLapsed`, and `ReaderTakenOver` if `run` is given and not the newest run of the query.
        """

    def check_newest_run(self, reader: str, run: int) -> None:
        """Raise `ReaderTakenOver` if `run` is given and not the newest run of the query."""

    def check_active(self, reader: str) -> None:
        """Raise `ReaderLapsed` if a reader has lapsed."""


def check_not_renumbered(outbox: OutboxPort, outbox_id: str) -> None:
    """Raise `OutboxReplaced` if the outbox has another name than `outbox_id`.

    NB: to be called after values were read: they are of this outbox only if it still has its name.
    """
    if outbox.outbox_id != outbox_id:
        raise OutboxReplaced(f"the outbox was renumbered: it is {outbox.outbox_id}, and the query reads {outbox_id}")
