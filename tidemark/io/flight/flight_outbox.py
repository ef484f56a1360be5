"""The outbox of a server, read over Arrow Flight, with the methods of `OutboxReader` that queries use.

Each value is checked here against the checksums in its header, so that damage on the way is found as in the file.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa
from pyarrow import flight

from tidemark.io.flight.remote_errors import ServerBusy, ServerUnreachable, translated_error
from tidemark.io.flight.server_address import ServerAddress, flight_location
from tidemark.io.readers.reader_use import check_newest_run
from tidemark.io.state.environment import StateReplaced
from tidemark.io.state.schema_values import ReadVersions, decode_schema
from tidemark.model.errors import TidemarkError
from tidemark.model.lsn import Oid
from tidemark.model.position import Sequence
from tidemark.model.relation import Relation
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.outbox import OutboxValue, join
from tidemark.wire.outbox_requests import (
    BEGINNING_FOUND,
    FACTS,
    HEADERS_MAX,
    KNOWN_READERS,
    PLANNED,
    RANGES_MAX,
    READER_FOUND,
    REQUEST,
    VALUES,
    OutboxFacts,
    OutboxRequest,
    Query,
    ValuesRequest,
    decode_headers,
    unpack_version,
)
from tidemark.wire.relations import SchemaVersion
from tidemark.wire.state.known_readers import KnownReaders
from tidemark.wire.state.outbox_ledger import OutboxLedger
from tidemark.wire.state.readers import Reader, ReaderKind
from tidemark.wire.state.values import Beginning, Identity
from tidemark.wire.values import ValueHeader

AnswerT = TypeVar("AnswerT")
CALL_S = 30.0  # of a request, or for the next message of a stream; the server answers within milliseconds
BUSY_S = 60.0  # for a place at a busy server, in all; a range of 16 MiB is sent in a second
POLL_S = 0.1  # doubled after each attempt
POLL_S_MAX = 2.0
AUTHORIZATION = b"authorization"
CHANNEL = [
    # For the answer to the request for a stream, which has no other bound.
    ("grpc.keepalive_time_ms", 300_000),  # gRPC's servers end connections with more frequent pings
    ("grpc.keepalive_timeout_ms", 20_000),
    # While gRPC waits to connect again, requests fail at once; by default it waits up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]


class FlightOutbox:
    """A connection to an outbox server; used by one process, by any thread.

    `call_s` bounds the wait for each answer, `busy_s` the wait for a place at a busy server, and `outage_s` that for a
    server that does not answer, as during a restart; `first_s` is the latter for the first request.
    """

    def __init__(
        self,
        address: ServerAddress,
        *,
        call_s: float = CALL_S,
        busy_s: float = BUSY_S,
        outage_s: float = 0.0,
        first_s: float = 0.0,
    ) -> None:
        self.address = address
        self._call_s, self._busy_s, self._outage_s = call_s, busy_s, first_s
        headers = [] if address.token is None else [(AUTHORIZATION, b"Bearer " + address.token.content)]
        self._of_request = flight.FlightCallOptions(timeout=call_s, headers=headers)
        self._of_stream = flight.FlightCallOptions(headers=headers)
        self._relations = ReadVersions()
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC logs failed handshakes; our errors have the reason
        with self._translated():
            roots = {"tls_root_certs": address.roots} if address.roots else {}
            self._client = flight.FlightClient(flight_location(address.url), generic_options=CHANNEL, **roots)
        self.identity: Identity = self._request_facts().identity  # of the last facts
        self._outage_s = outage_s

    @property
    def place(self) -> str:
        """Where the outbox is, for messages."""
        return f"the outbox server at {self.address.url}"

    @property
    def outbox_id(self) -> str:
        """The current name of the outbox."""
        return self._facts().identity.outbox_id

    @property
    def outbox_bytes_max(self) -> int:
        """The bound of the outbox."""
        return self.identity.outbox_bytes_max

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def ledger(self) -> OutboxLedger:
        """Return the contents of the outbox."""
        return self._facts().ledger

    def head(self) -> Sequence:
        """Return the sequence of the newest value."""
        return self.ledger().head

    def beginning(self) -> Beginning | None:
        """Return where the capture begins, with its databases and types."""
        return BEGINNING_FOUND.read(self.request_one(Query.BEGINNING, OutboxRequest()))

    def plan(self, after: Sequence, bytes_max: int) -> Sequence:
        """Return a group end after `after`: at least one group, then as many as fit into `bytes_max`."""
        return PLANNED.read(self.request_one(Query.PLAN, OutboxRequest(after=after, bytes_max=bytes_max)))

    def headers(self, after: Sequence, upto: Sequence) -> list[ValueHeader]:
        """Return the headers of a range."""
        return [header for part in self._header_parts(after, upto) for header in part]

    def group_ends(self, after: Sequence) -> Iterator[ValueHeader]:
        """Yield the header of the last value of each group after `after`, a group end."""
        while part := decode_headers(self.request_one(Query.GROUP_ENDS, OutboxRequest(after=after))):
            yield from part
            after = part[-1].sequence

    def read(
        self, after: Sequence, upto: Sequence, wanted: Callable[[ValueHeader], bool] | None = None
    ) -> Iterator[OutboxValue]:
        """Yield the values of (after, upto]; with `wanted` those that it accepts, and only they are sent."""
        if wanted is None:
            yield from self._values([(after, upto)] if upto > after else [])
            return
        for part in self._header_parts(after, upto):
            ranges = ranges_of([header.sequence for header in part if wanted(header)])
            for first in range(0, len(ranges), RANGES_MAX):
                yield from self._values(ranges[first : first + RANGES_MAX])

    def relation(self, version: SchemaVersion) -> Relation:
        """Return the relation version with this number in headers."""

        def stored() -> bytes:
            return self.request_one(Query.RELATION, OutboxRequest(version=version))

        return self._relations.relation(version, stored)

    def relations(self) -> dict[SchemaVersion, tuple[Oid, Relation]]:
        """Return every schema version with its database."""
        sent = self.request(Query.RELATIONS, OutboxRequest())
        return {number: decode_schema(number, stored) for number, stored in map(unpack_version, sent)}

    def registered(self, reader: str) -> Reader | None:
        """Return what a reader has confirmed; None if it is not registered."""
        return READER_FOUND.read(self.request_one(Query.REGISTERED, OutboxRequest(reader=reader)))

    def register(self, reader: str, *, is_required: bool = True, kind: ReaderKind = ReaderKind.UNSTATED) -> Reader:
        """Register a reader, or return the earlier confirmation; raise `OtherReaderKind`."""
        return self._reader(Query.REGISTER, OutboxRequest(reader=reader, is_required=is_required, kind=kind))

    def confirm(self, reader: str, applied: Sequence, replayable: Sequence, *, run: int = 0) -> Reader:
        """Record what the tables of a reader contain, and what is never requested again."""
        request = OutboxRequest(reader=reader, applied=applied, replayable=replayable, run=run)
        return self._reader(Query.CONFIRM, request)

    def check_newest_run(self, reader: str, run: int) -> None:
        """Raise `ReaderTakenOver` if `run` is given and not the newest run of the query."""
        found = self.registered(reader)
        if found is not None:
            check_newest_run(reader, found, run)

    def check_active(self, reader: str) -> None:
        """Raise `ReaderLapsed` if a reader has lapsed."""
        self.request(Query.CHECK_ACTIVE, OutboxRequest(reader=reader))

    def known_readers(self) -> KnownReaders:
        """Return all readers with their lag by the server's clock."""
        return KNOWN_READERS.read(self.request_one(Query.KNOWN_READERS, OutboxRequest()))

    def drop_reader(self, reader: str) -> None:
        """Remove a reader; raise `UnknownReader`."""
        self.request(Query.DROP_READER, OutboxRequest(reader=reader))

    def resume_reader(self, reader: str) -> Reader:
        """Make a lapsed reader continue with the oldest value of the outbox."""
        return self._reader(Query.RESUME_READER, OutboxRequest(reader=reader))

    def _facts(self) -> OutboxFacts:
        """Request the facts; schema versions of another outbox have other relations."""
        facts = self._request_facts()
        if facts.identity != self.identity:
            self.identity, self._relations = facts.identity, ReadVersions()
        return facts

    def _request_facts(self) -> OutboxFacts:
        return FACTS.read(self.request_one(Query.FACTS, OutboxRequest()))

    def _reader(self, query: Query, request: OutboxRequest) -> Reader:
        found = READER_FOUND.read(self.request_one(query, request))
        assert found is not None, "the server has registered it"
        return found

    def _header_parts(self, after: Sequence, upto: Sequence) -> Iterator[list[ValueHeader]]:
        """Yield the headers of a range, as many as one answer contains; also of an empty range, which is checked."""
        while True:
            end = Sequence(min(upto, after + HEADERS_MAX))
            yield decode_headers(self.request_one(Query.HEADERS, OutboxRequest(after=after, upto=end)))
            after = end
            if after >= upto:
                return

    def _values(self, ranges: list[tuple[Sequence, Sequence]]) -> Iterator[OutboxValue]:
        if not ranges:
            return
        due = (Sequence(number) for after, upto in ranges for number in range(after + 1, upto + 1))
        for sequence, chunks in self._all_chunks(ranges):
            if sequence != next(due, None):
                raise DamagedValue(f"outbox value {sequence}", "it was not the next one requested")
            yield join(sequence, chunks)
        if (missing := next(due, None)) is not None:
            raise DamagedValue(f"outbox value {missing}", "it was not sent")

    def _all_chunks(self, ranges: list[tuple[Sequence, Sequence]]) -> Iterator[tuple[Sequence, list[bytes]]]:
        """Yield the stored chunks of each value; of those that are left again after an outage of the server."""
        identity, broken_s, wait_s = self.identity, 0.0, POLL_S
        while ranges:
            try:
                for value in self._chunks(ranges):
                    yield value
                    ranges, broken_s, wait_s = _behind(ranges, value[0]), 0.0, POLL_S
                ranges = []  # also if values were not sent
            except ServerUnreachable:
                broken_s = broken_s or time.monotonic()
                if time.monotonic() + wait_s > broken_s + self._outage_s:
                    raise
                if self._facts().identity != identity:
                    raise StateReplaced(f"{self.place} has another outbox than before its restart") from None
                time.sleep(wait_s)  # a server may answer, and break each stream
                wait_s = min(2 * wait_s, POLL_S_MAX)

    def _chunks(self, ranges: list[tuple[Sequence, Sequence]]) -> Iterator[tuple[Sequence, list[bytes]]]:
        """Yield the stored chunks of each value."""
        ticket = flight.Ticket(VALUES.write(ValuesRequest(tuple(ranges))))
        waiting: tuple[Sequence, list[bytes]] | None = None
        for batch in self._batches(ticket):
            for number, chunk in zip(batch.column("sequence").to_pylist(), batch.column("chunk"), strict=True):
                if waiting is None or waiting[0] != number:
                    if waiting is not None:
                        yield waiting
                    waiting = Sequence(number), []
                waiting[1].append(chunk.as_py())
        if waiting is not None:
            yield waiting

    def _batches(self, ticket: flight.Ticket) -> Iterator[pa.RecordBatch]:
        stream, batch = self._repeated(lambda: self._begin_stream(ticket))
        try:
            while batch is not None:
                yield batch
                batch = self._next_batch(stream)
        finally:
            stream.cancel()

    def _begin_stream(self, ticket: flight.Ticket) -> tuple[flight.FlightStreamReader, pa.RecordBatch | None]:
        """Return a stream and its first message; None if it has none. A busy server refuses the first one."""
        with self._translated():
            stream = self._client.do_get(ticket, self._of_stream)
        try:
            return stream, self._next_batch(stream)
        except BaseException:
            stream.cancel()
            raise

    def _next_batch(self, stream: flight.FlightStreamReader) -> pa.RecordBatch | None:
        """Return the next message of a stream, None at its end; raise if none arrives in time."""
        is_overdue = threading.Event()

        def end() -> None:
            is_overdue.set()
            stream.cancel()

        deadline = threading.Timer(self._call_s, end)
        deadline.daemon = True
        deadline.start()
        try:
            with self._translated():
                return stream.read_chunk().data
        except StopIteration:
            return None
        except TidemarkError as error:
            if is_overdue.is_set():
                raise ServerUnreachable(
                    f"{self.place} does not answer: it sent nothing of a stream in {self._call_s:g} s"
                ) from error
            raise
        finally:
            deadline.cancel()

    def _repeated(self, request: Callable[[], AnswerT]) -> AnswerT:
        """Make a request, again while the server is busy or does not answer: each may be made twice."""
        since, wait_s = time.monotonic(), POLL_S
        while True:
            try:
                return request()
            except (ServerBusy, ServerUnreachable) as error:
                bound_s = self._busy_s if isinstance(error, ServerBusy) else self._outage_s
                if time.monotonic() + wait_s > since + bound_s:
                    raise
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, POLL_S_MAX)

    def request_one(self, query: Query, request: OutboxRequest) -> bytes:
        """Return the answer to a request."""
        return b"".join(self.request(query, request))

    def request(self, query: Query, request: OutboxRequest) -> list[bytes]:
        """Return the parts of the answer to a request."""
        action = flight.Action(query.value, REQUEST.write(request))
        return self._repeated(lambda: self._act(action))

    def _act(self, action: flight.Action) -> list[bytes]:
        with self._translated():
            return [result.body.to_pybytes() for result in self._client.do_action(action, self._of_request)]

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except pa.ArrowException as error:
            raise translated_error(error, self.address) from error


def _behind(ranges: list[tuple[Sequence, Sequence]], upto: Sequence) -> list[tuple[Sequence, Sequence]]:
    """Return what is left of ascending ranges after the values up to `upto`."""
    return [(max(after, upto), end) for after, end in ranges if end > upto]


def ranges_of(sequences: list[Sequence]) -> list[tuple[Sequence, Sequence]]:
    """Return ascending sequences as ranges (after, upto]."""
    ranges: list[tuple[Sequence, Sequence]] = []
    for sequence in sequences:
        if ranges and ranges[-1][1] == sequence - 1:
            ranges[-1] = ranges[-1][0], sequence
        else:
            ranges.append((Sequence(sequence - 1), sequence))
    return ranges
