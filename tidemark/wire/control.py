"""The control protocol: one line of JSON in each direction, then the connection closes.

request    {"command": "status"}
response   {"ok": true, ...}    or    {"ok": false, "error": "...", "hint": "..."}
"""

import json
from collections.abc import Mapping

from tidemark.model.errors import ConfigError, TidemarkError

LINE_BYTES_MAX = 1 << 20
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class BadRequest(ConfigError):
    """A line that is not a request or response."""

    hint = "use the `cdcctl` of the version that runs"


def encode_line(content: Mapping[str, Json]) -> bytes:
    """Return `content` as a line."""
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


def decode_line(line: bytes) -> dict[str, Json]:
    """Parse a line; raise `BadRequest` for anything but one JSON object."""
    if len(line) > LINE_BYTES_MAX or not line.endswith(b"\n"):
        raise BadRequest(f"{len(line)} bytes are not a line of the control protocol")
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"not JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadRequest("not a JSON object")
    return content


def refusal(error: TidemarkError) -> dict[str, Json]:
    """Return the response for an error."""
    return {"ok": False, "error": str(error), "kind": type(error).__name__, "hint": error.hint}
