"""The capture at an outbox server, with the methods of `StateCapture`."""

from collections.abc import Mapping

from tidemark.io.flight.flight_outbox import FlightOutbox
from tidemark.io.state.schema_values import decode_schema
from tidemark.model.lsn import Oid
from tidemark.model.relation import Relation
from tidemark.wire.capture_facts import CaptureFacts
from tidemark.wire.outbox_requests import BREAKS_FOUND, CAPTURE_FOUND, KEYS_FOUND, OutboxRequest, Query
from tidemark.wire.relations import SchemaVersion

UNNUMBERED = SchemaVersion(0)  # of a relation that is not a version in the outbox


class ServerCapture:
    """The capture at one server."""

    def __init__(self, outbox: FlightOutbox) -> None:
        self._outbox = outbox

    def facts(self) -> CaptureFacts:
        """Return what a pipeline must know about the capture."""
        return CAPTURE_FOUND.read(self._outbox.request_one(Query.CAPTURE, OutboxRequest()))

    def captured_tables(self) -> Mapping[tuple[Oid, Oid], Relation]:
        """Return the tables whose changes are delivered under their own name, as the server's configuration selects."""
        stored = self._outbox.request(Query.CAPTURED_TABLES, OutboxRequest())
        found = (decode_schema(UNNUMBERED, value) for value in stored)
        return {(database, relation.oid): relation for database, relation in found}

    def accepted_breaks(self, reader: str) -> Mapping[str, str]:
        """Return the breaks that the operator accepted."""
        return BREAKS_FOUND.read(self._outbox.request_one(Query.ACCEPTED_BREAKS, OutboxRequest(reader=reader)))

    def resume_requests(self, reader: str) -> list[str]:
        """Return the keys of the tables whose resumption is requested."""
        return list(KEYS_FOUND.read(self._outbox.request_one(Query.RESUME_REQUESTS, OutboxRequest(reader=reader))))

    def request_resume(self, reader: str, key: str) -> None:
        """Request that the table with this key is resumed."""
        self._outbox.request(Query.REQUEST_RESUME, OutboxRequest(reader=reader, key=key))

    def close_request(self, reader: str, key: str) -> None:
        """Remove a request, if there is one."""
        self._outbox.request(Query.CLOSE_REQUEST, OutboxRequest(reader=reader, key=key))

    def progress(self, reader: str) -> bytes:
        """Return the last recorded progress of a pipeline; empty if there is none."""
        return self._outbox.request_one(Query.PROGRESS, OutboxRequest(reader=reader))

    def record_progress(self, reader: str, content: bytes) -> None:
        """Record the progress of a pipeline, a JSON object."""
        self._outbox.request(Query.RECORD_PROGRESS, OutboxRequest(reader=reader, progress=content.decode()))
