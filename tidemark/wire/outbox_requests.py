"""Requests to the outbox server and its answers: small values as JSON, headers and values as their stored bytes."""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Self

from tidemark.model.position import NO_SEQUENCE, Sequence
from tidemark.wire.capture_facts import CaptureFacts
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.json_form import JsonForm
from tidemark.wire.relations import SchemaVersion
from tidemark.wire.state.known_readers import KnownReaders
from tidemark.wire.state.outbox_ledger import OutboxLedger
from tidemark.wire.state.readers import Reader, ReaderKind
from tidemark.wire.state.values import Beginning, Identity
from tidemark.wire.values import HEADER_BYTES, ValueHeader, decode_header

REQUEST_BYTES_MAX = 64 << 10
PROGRESS_BYTES_MAX = 4 << 20  # of the progress of a pipeline: 300 bytes for each table that it cannot write
HEADERS_MAX = 10_000  # of one answer: 1.5 MB
RESUME_REQUESTS_MAX = 10_000  # open requests of one reader
RANGES_MAX = 1_000  # of one request for values
SEQUENCE_BYTES = 8  # bytes of the sequence before a header in an answer
VERSION_BYTES = 4  # bytes of the number before a schema version in an answer


class Query(Enum):
    """The kinds of requests."""

    FACTS = "facts"
    BEGINNING = "beginning"
    PLAN = "plan"
    HEADERS = "headers"
    GROUP_ENDS = "group_ends"
    RELATION = "relation"
    RELATIONS = "relations"
    REGISTERED = "registered"
    REGISTER = "register"
    CONFIRM = "confirm"
    CHECK_ACTIVE = "check_active"
    KNOWN_READERS = "known_readers"
    DROP_READER = "drop_reader"
    RESUME_READER = "resume_reader"
    CAPTURE = "capture"
    CAPTURED_TABLES = "captured_tables"
    ACCEPTED_BREAKS = "accepted_breaks"
    RESUME_REQUESTS = "resume_requests"
    REQUEST_RESUME = "request_resume"
    CLOSE_REQUEST = "close_request"
    PROGRESS = "progress"
    RECORD_PROGRESS = "record_progress"


@dataclass(frozen=True, slots=True)
class OutboxRequest:
    """The arguments of a request; each kind reads some of them."""

    after: Sequence = NO_SEQUENCE
    upto: Sequence = NO_SEQUENCE
    bytes_max: int = 0
    version: int = 0  # of a relation
    reader: str = ""
    is_required: bool = False
    kind: ReaderKind = ReaderKind.UNSTATED  # of the reader to register
    run: int = 0  # of the query that confirms
    applied: Sequence = NO_SEQUENCE
    replayable: Sequence = NO_SEQUENCE
    key: str = ""  # of a log, see `tidemark.io.readers.accepted_breaks`
    progress: str = ""  # of a pipeline, as JSON


@dataclass(frozen=True, slots=True)
class OutboxFacts:
    """The outbox of the server: its capture, its current name and its extent."""

    identity: Identity
    ledger: OutboxLedger

    @classmethod
    def of(cls, identity: Identity, ledger: OutboxLedger) -> Self:
        """Return the facts, without the marks of the ledger, which no reader needs."""
        return cls(identity, replace(ledger, marks=()))


@dataclass(frozen=True, slots=True)
class ValuesRequest:
    """The values of ranges (after, upto], in ascending order."""

    ranges: tuple[tuple[Sequence, Sequence], ...]


@dataclass(frozen=True, slots=True)
class RemoteError:
    """An error of the server's side: the name of its class, its message and its hint."""

    kind: str
    message: str
    hint: str


REQUEST: JsonForm[OutboxRequest] = JsonForm(OutboxRequest)
FACTS: JsonForm[OutboxFacts] = JsonForm(OutboxFacts)
PLANNED: JsonForm[Sequence] = JsonForm(int)
READER_FOUND: JsonForm[Reader | None] = JsonForm(Reader | None)
KNOWN_READERS: JsonForm[KnownReaders] = JsonForm(KnownReaders)
BEGINNING_FOUND: JsonForm[Beginning | None] = JsonForm(Beginning | None)
CAPTURE_FOUND: JsonForm[CaptureFacts] = JsonForm(CaptureFacts)
BREAKS_FOUND: JsonForm[dict[str, str]] = JsonForm(dict[str, str])
KEYS_FOUND: JsonForm[tuple[str, ...]] = JsonForm(tuple[str, ...])
VALUES: JsonForm[ValuesRequest] = JsonForm(ValuesRequest)
ERROR: JsonForm[RemoteError] = JsonForm(RemoteError)


def decode_headers(packed: bytes) -> list[ValueHeader]:
    """Return the headers of an answer, each after its sequence."""
    size = SEQUENCE_BYTES + HEADER_BYTES
    if len(packed) % size:
        raise DamagedValue("headers of the outbox server", f"{len(packed)} bytes are no multiple of {size}")
    found = []
    for at in range(0, len(packed), size):
        sequence = Sequence(int.from_bytes(packed[at : at + SEQUENCE_BYTES]))
        found.append(decode_header(packed[at + SEQUENCE_BYTES : at + size], sequence))
    return found


def pack_version(number: SchemaVersion, schema: bytes) -> bytes:
    """Return a stored schema version after its number."""
    return number.to_bytes(VERSION_BYTES) + schema


def unpack_version(sent: bytes) -> tuple[SchemaVersion, bytes]:
    """Return the number of a schema version, and the version as it is stored."""
    return SchemaVersion(int.from_bytes(sent[:VERSION_BYTES])), sent[VERSION_BYTES:]


def pack_header(sequence: Sequence, header: bytes) -> bytes:
    """Return a stored header after its sequence."""
    return sequence.to_bytes(SEQUENCE_BYTES) + header
