"""The bounds of a request to the outbox server, which are checked before any of it is done."""

from pyarrow import flight

from tidemark.model.errors import ConfigError
from tidemark.wire.json_form import JsonMismatch
from tidemark.wire.outbox_requests import PROGRESS_BYTES_MAX, REQUEST, REQUEST_BYTES_MAX, OutboxRequest, Query


class RequestRefused(ConfigError):
    """A request beyond the bounds of the server, or of an unknown form."""

    hint = "the client must be of the same version of Tidemark"


def parse_request(action: flight.Action) -> tuple[Query, OutboxRequest]:
    """Return the kind and the arguments of a request; raise `RequestRefused`."""
    try:
        query = Query(action.type)
    except ValueError:
        raise RequestRefused(f"no request is of kind {action.type[:40]!r}") from None
    body: bytes = action.body.to_pybytes()
    check_size(body, PROGRESS_BYTES_MAX if query is Query.RECORD_PROGRESS else REQUEST_BYTES_MAX)
    try:
        return query, REQUEST.read(body)
    except JsonMismatch as error:
        raise RequestRefused(f"not a request of kind {action.type}: {error}") from error


def check_size(body: bytes, bytes_max: int = REQUEST_BYTES_MAX) -> None:
    """Raise `RequestRefused` for a request of more than `bytes_max`."""
    if len(body) > bytes_max:
        raise RequestRefused(f"a request has {len(body)} bytes: at most {bytes_max}")
