"""The answers of the outbox server to a pipeline's requests about the capture.

A client with the token may change, of its own registered reader, only files with bounded names, number and size.
"""

import json
from collections.abc import Callable, Iterator

from tidemark.engine.selection import Selection
from tidemark.io.flight.request_bounds import RequestRefused
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.readers.state_capture import StateCapture
from tidemark.io.state.outbox_table import UnknownReader
from tidemark.io.state.schema_values import encode_schema
from tidemark.wire.outbox_requests import (
    BREAKS_FOUND,
    CAPTURE_FOUND,
    KEYS_FOUND,
    RESUME_REQUESTS_MAX,
    OutboxRequest,
    Query,
)

Answer = Callable[[StateCapture, OutboxRequest], Iterator[bytes]]


def answer(outbox: OutboxReader, selection: Selection, query: Query, request: OutboxRequest) -> Iterator[bytes]:
    """Return the parts of the answer to one of `CAPTURE_QUERIES`; raise `UnknownReader` for another reader's files."""
    if query not in _OF_THE_WHOLE and outbox.registered(request.reader) is None:
        raise UnknownReader(f"reader {request.reader!r} is not registered in {outbox.folder.root}")
    return _ANSWERS[query](StateCapture(outbox, selection), request)


def _facts(capture: StateCapture, _request: OutboxRequest) -> Iterator[bytes]:
    yield CAPTURE_FOUND.write(capture.facts())


def _captured_tables(capture: StateCapture, _request: OutboxRequest) -> Iterator[bytes]:
    for (database, _), relation in capture.captured_tables().items():
        yield encode_schema(database, relation)


def _accepted_breaks(capture: StateCapture, request: OutboxRequest) -> Iterator[bytes]:
    yield BREAKS_FOUND.write(dict(capture.accepted_breaks(request.reader)))


def _resume_requests(capture: StateCapture, request: OutboxRequest) -> Iterator[bytes]:
    yield KEYS_FOUND.write(tuple(capture.resume_requests(request.reader)))


def _request_resume(capture: StateCapture, request: OutboxRequest) -> Iterator[bytes]:
    if len(capture.resume_requests(request.reader)) >= RESUME_REQUESTS_MAX:
        raise RequestRefused(f"reader {request.reader!r} has {RESUME_REQUESTS_MAX} open requests to resume tables")
    capture.request_resume(request.reader, request.key)
    yield from ()


def _close_request(capture: StateCapture, request: OutboxRequest) -> Iterator[bytes]:
    capture.close_request(request.reader, request.key)
    yield from ()


def _progress(capture: StateCapture, request: OutboxRequest) -> Iterator[bytes]:
    yield capture.progress(request.reader)


def _record_progress(capture: StateCapture, request: OutboxRequest) -> Iterator[bytes]:
    try:
        is_object = isinstance(json.loads(request.progress), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise RequestRefused("the progress of a pipeline is a JSON object")
    capture.record_progress(request.reader, request.progress.encode())
    yield from ()


_OF_THE_WHOLE = {Query.CAPTURE, Query.CAPTURED_TABLES}
_ANSWERS: dict[Query, Answer] = {
    Query.CAPTURE: _facts,
    Query.CAPTURED_TABLES: _captured_tables,
    Query.ACCEPTED_BREAKS: _accepted_breaks,
    Query.RESUME_REQUESTS: _resume_requests,
    Query.REQUEST_RESUME: _request_resume,
    Query.CLOSE_REQUEST: _close_request,
    Query.PROGRESS: _progress,
    Query.RECORD_PROGRESS: _record_progress,
}
CAPTURE_QUERIES = frozenset(_ANSWERS)
