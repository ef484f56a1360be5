"""The outbox server: Arrow Flight over the outbox of a state folder.

It opens the state as a reader does, and takes no part in delivery. Values are sent as the stored bytes; no row is
opened. The chunks of a message are copied once, in a transaction that ends before the message is sent, so a slow client
holds no page of LMDB. A stream has at most two messages of `MESSAGE_BYTES` in memory: its client reads one message
before the next one is made.
"""

import hmac
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
from pyarrow import flight

from tidemark.engine.selection import Selection
from tidemark.io.flight.capture_answers import CAPTURE_QUERIES, answer
from tidemark.io.flight.flight_outbox import AUTHORIZATION
from tidemark.io.flight.remote_errors import ServerBusy, encoded_error
from tidemark.io.flight.request_bounds import RequestRefused, check_size, parse_request
from tidemark.io.flight.server_address import flight_location
from tidemark.io.flight.server_metrics import VALUES_KIND, ServerMetrics
from tidemark.io.host.clock import SystemClock
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.readers.reader_register import StateReaders
from tidemark.model.errors import TidemarkError
from tidemark.model.secret import Secret
from tidemark.wire.json_form import JsonMismatch
from tidemark.wire.outbox_requests import (
    BEGINNING_FOUND,
    FACTS,
    HEADERS_MAX,
    KNOWN_READERS,
    PLANNED,
    RANGES_MAX,
    READER_FOUND,
    VALUES,
    OutboxFacts,
    OutboxRequest,
    Query,
    ValuesRequest,
    pack_header,
    pack_version,
)
from tidemark.wire.relations import SchemaVersion
from tidemark.wire.values import encode_header

MESSAGE_BYTES = 2 << 20  # less costs more by message, more does not stay in the caches
REQUESTS_MAX = 64  # that run at once, beside the streams of values
CATALOG = Query.CAPTURED_TABLES  # reads the catalog history, which takes memory: one at a time
SCHEMA = pa.schema([pa.field("sequence", pa.int64()), pa.field("chunk", pa.binary())])
_SOCKET_UMASK = 0o777


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a server listens, and what it requires."""

    location: str
    token: Secret | None = None
    certificate: bytes = b""  # in PEM
    key: bytes = b""
    socket_mode: int = 0o600


class OutboxServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Serves one outbox; `opened` returns its reader, for each request again; `selection` is that of the capture."""

    def __init__(
        self,
        listening: Listening,
        opened: Callable[[], OutboxReader],
        streams_max: int,
        metrics: ServerMetrics,
        selection: Selection,
    ) -> None:
        self._opened = opened
        self._selection = selection
        self._metrics = metrics
        self._streams_max = streams_max
        self._streams = threading.BoundedSemaphore(streams_max)
        self._requests = threading.BoundedSemaphore(REQUESTS_MAX)
        self._catalogs = threading.BoundedSemaphore(1)
        metrics.streams_max.set(streams_max)
        middleware = {} if listening.token is None else {"token": _TokenCheck(listening.token, metrics)}
        certificates = [(listening.certificate, listening.key)] if listening.certificate else []
        before = os.umask(_SOCKET_UMASK & ~listening.socket_mode)  # gRPC creates the socket
        try:
            super().__init__(flight_location(listening.location), tls_certificates=certificates, middleware=middleware)
        finally:
            os.umask(before)

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[flight.Result]:
        """Answer a request."""
        del context
        with self._counted(action.type), self._bounded(self._requests, REQUESTS_MAX, "requests"):
            query, request = parse_request(action)
            with self._bounded(self._catalogs, 1, "reading of the catalog") if query is CATALOG else nullcontext():
                for part in self._answer(query, request):
                    yield flight.Result(pa.py_buffer(part))

    def _answer(self, query: Query, request: OutboxRequest) -> Iterator[bytes]:
        if query in CAPTURE_QUERIES:
            return answer(self._opened(), self._selection, query, request)
        return _ANSWERS[query](self._opened(), request)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        """Send the values of ranges."""
        del context
        with self._counted(VALUES_KIND):
            check_size(ticket.ticket)
            try:
                request = VALUES.read(ticket.ticket)
            except JsonMismatch as error:
                raise RequestRefused(f"not a request for values: {error}") from error
            if len(request.ranges) > RANGES_MAX:
                raise RequestRefused(f"{len(request.ranges)} ranges were requested: at most {RANGES_MAX}")
            return flight.GeneratorStream(SCHEMA, self._sent(request))

    def _sent(self, request: ValuesRequest) -> Iterator[pa.RecordBatch]:
        slot = self._bounded(self._streams, self._streams_max, "streams")
        with self._counted(), slot, self._metrics.streams.track_inprogress():
            for batch in _messages(self._opened(), request):
                self._metrics.sent_bytes.inc(batch.nbytes)
                yield batch

    @contextmanager
    def _counted(self, kind: str = "") -> Iterator[None]:
        """Count a request; send an error of ours by its name."""
        if kind in _KINDS or kind == VALUES_KIND:
            self._metrics.count(kind)
        try:
            yield
        except TidemarkError as error:
            if not isinstance(error, ServerBusy):  # counted as refused
                self._metrics.errors.inc()
            raise encoded_error(error) from error

    @contextmanager
    def _bounded(self, slots: threading.BoundedSemaphore, bound: int, what: str) -> Iterator[None]:
        if not slots.acquire(blocking=False):
            self._metrics.refused.inc()
            raise ServerBusy(f"the outbox server is busy: at most {bound} {what} run at once")
        try:
            yield
        finally:
            slots.release()


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Refuses each call without the token."""

    def __init__(self, token: Secret, metrics: ServerMetrics) -> None:
        self._expected = b"Bearer " + token.content
        self._metrics = metrics

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str | bytes]]) -> None:
        """Raise unless the call has the token."""
        del info
        (sent,) = headers.get(AUTHORIZATION.decode(), [""])[:1] or [""]
        found = sent.encode(errors="replace") if isinstance(sent, str) else sent
        if not hmac.compare_digest(found, self._expected):
            self._metrics.refused.inc()
            raise flight.FlightUnauthenticatedError("the token is wrong")


def _facts(outbox: OutboxReader, _request: OutboxRequest) -> Iterator[bytes]:
    yield FACTS.write(OutboxFacts.of(outbox.current_identity(), outbox.ledger()))


def _beginning(outbox: OutboxReader, _request: OutboxRequest) -> Iterator[bytes]:
    yield BEGINNING_FOUND.write(outbox.beginning())


def _plan(outbox: OutboxReader, request: OutboxRequest) -> Iterator[bytes]:
    yield PLANNED.write(outbox.plan(request.after, request.bytes_max))


def _headers(outbox: OutboxReader, request: OutboxRequest) -> Iterator[bytes]:
    count = request.upto - request.after
    if count > HEADERS_MAX:
        raise RequestRefused(f"{count} headers were requested: at most {HEADERS_MAX}")
    found = outbox.headers(request.after, request.upto)
    yield b"".join(pack_header(header.sequence, encode_header(header)) for header in found)


def _group_ends(outbox: OutboxReader, request: OutboxRequest) -> Iterator[bytes]:
    ends = islice(outbox.group_ends(request.after), HEADERS_MAX)
    yield b"".join(pack_header(header.sequence, encode_header(header)) for header in ends)


def _relation(outbox: OutboxReader, request: OutboxRequest) -> Iterator[bytes]:
    yield outbox.stored_schema(SchemaVersion(request.version))


def _relations(outbox: OutboxReader, _request: OutboxRequest) -> Iterator[bytes]:
    yield from (pack_version(number, stored) for number, stored in outbox.stored_schemas())


def _registered(outbox: OutboxReader, request: OutboxRequest) -> Iterator[bytes]:
    yield READER_FOUND.write(outbox.registered(request.reader))


def _register(outbox: OutboxReader, request: OutboxRequest) -> Iterator[bytes]:
    yield READER_FOUND.write(outbox.register(request.reader, is_required=request.is_required))


def _confirm(outbox: OutboxReader, request: OutboxRequest) -> Iterator[bytes]:
    yield READER_FOUND.write(outbox.confirm(request.reader, request.applied, request.replayable))


def _check_active(outbox: OutboxReader, request: OutboxRequest) -> Iterator[bytes]:
    outbox.check_active(request.reader)
    yield from ()


def _known_readers(outbox: OutboxReader, _request: OutboxRequest) -> Iterator[bytes]:
    yield KNOWN_READERS.write(StateReaders(outbox).known(SystemClock().wall_us()))


def _drop_reader(outbox: OutboxReader, request: OutboxRequest) -> Iterator[bytes]:
    StateReaders(outbox).drop(request.reader)
    yield from ()


def _resume_reader(outbox: OutboxReader, request: OutboxRequest) -> Iterator[bytes]:
    yield READER_FOUND.write(StateReaders(outbox).resume(request.reader))


_ANSWERS: dict[Query, Callable[[OutboxReader, OutboxRequest], Iterator[bytes]]] = {
    Query.FACTS: _facts,
    Query.BEGINNING: _beginning,
    Query.PLAN: _plan,
    Query.HEADERS: _headers,
    Query.GROUP_ENDS: _group_ends,
    Query.RELATION: _relation,
    Query.RELATIONS: _relations,
    Query.REGISTERED: _registered,
    Query.REGISTER: _register,
    Query.CONFIRM: _confirm,
    Query.CHECK_ACTIVE: _check_active,
    Query.KNOWN_READERS: _known_readers,
    Query.DROP_READER: _drop_reader,
    Query.RESUME_READER: _resume_reader,
}
"""The parts of the answer to each kind of request."""


def _messages(outbox: OutboxReader, request: ValuesRequest) -> Iterator[pa.RecordBatch]:
    """Yield the stored chunks of ranges in messages of bounded size."""
    for copied in outbox.stored_chunks(request.ranges, MESSAGE_BYTES):
        ends = pa.array(copied.ends, pa.int32()).buffers()[1]
        chunks = pa.Array.from_buffers(pa.binary(), len(copied.sequences), [None, ends, copied.content])
        yield pa.record_batch([pa.array(copied.sequences, pa.int64()), chunks], schema=SCHEMA)


_KINDS = {query.value for query in Query}
