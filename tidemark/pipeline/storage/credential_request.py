"""One request for credentials: by no proxy, with a bounded answer, and with errors that contain no secret."""

import http.client
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import urlsplit

BODY_BYTES_MAX: Final = 1 << 16
PLAIN_HOSTS: Final = ("127.0.0.1", "::1", "localhost", "169.254.170.2", "169.254.170.23", "fd00:ec2::23")


class CredentialAnswer(NamedTuple):
    """The answer of a server to one request."""

    status: int
    body: str


def send(
    url: str, method: str, target: str, headers: Mapping[str, str], *, limit_s: float, body: str = ""
) -> CredentialAnswer:
    """Send one request to the server of `url`; raise `OSError`, `HTTPException` or `ValueError` if it fails.

    `limit_s` is the limit of the connection and of each read.
    """
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=limit_s)
    try:
        try:
            connection.request(method, target, body=body or None, headers=dict(headers))
        except (ValueError, http.client.InvalidURL):  # NB: its text has the token, which is a secret
            raise ValueError("the token or the address cannot be sent") from None
        answer = connection.getresponse()
        return CredentialAnswer(answer.status, answer.read(BODY_BYTES_MAX).decode())
    finally:
        connection.close()


def body_of(url: str, method: str, answer: CredentialAnswer) -> str:
    """Return the body of an answer; raise `ValueError` if the request was refused."""
    if answer.status != HTTPStatus.OK:
        raise ValueError(refusal(url, method, answer))
    return answer.body


def refusal(url: str, method: str, answer: CredentialAnswer) -> str:
    """Return what a refused request says, without the body."""
    return f"{urlsplit(url).hostname} answers {method} with {answer.status}"


def is_plain(url: str) -> bool:
    """Return whether a request would cross a network without TLS."""
    parts = urlsplit(url)
    return parts.scheme != "https" and parts.hostname not in PLAIN_HOSTS
