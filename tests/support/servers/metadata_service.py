"""The addresses at which a platform gives credentials to its programs: of a machine, a container, a web identity."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

HOST = "127.0.0.1"
ROLE = "pipeline role"
STS = "https://sts.amazonaws.com/doc/2011-06-15/"
_TOKEN = "metadata token"
_ROLES = "/latest/meta-data/iam/security-credentials/"


@dataclass
class MetadataService:
    """What it answers; the container's address needs the token `container_token`, STS the token `web_token`."""

    port: int
    key: str = "FIRST"
    expires_s: float = 2e9
    container_token: str = "container token"
    web_token: str = "web token"
    status: HTTPStatus = HTTPStatus.OK
    text: str | None = None  # in place of credentials
    requests: int = 0  # so far

    @property
    def endpoint(self) -> str:
        """Return the address of the metadata."""
        return f"http://{HOST}:{self.port}"

    def answer(self, method: str, path: str, headers: dict[str, str], body: str) -> tuple[HTTPStatus, str]:
        """Return what a request gets."""
        self.requests += 1
        if self.status is not HTTPStatus.OK:
            return self.status, ""
        if (method, path) == ("POST", "/"):
            return self._assumed_role({name: values[0] for name, values in parse_qs(body).items()})
        if path == "/container?id=7":
            is_known = headers.get("authorization") == self.container_token
            return (HTTPStatus.OK, self._credentials()) if is_known else (HTTPStatus.UNAUTHORIZED, "")
        if (method, path) == ("PUT", "/latest/api/token"):
            return HTTPStatus.OK, _TOKEN
        if headers.get("x-aws-ec2-metadata-token") != _TOKEN:
            return HTTPStatus.UNAUTHORIZED, ""
        answers = {_ROLES: f"{ROLE}\n", _ROLES + "pipeline%20role": self._credentials()}
        return (HTTPStatus.OK, answers[path]) if path in answers else (HTTPStatus.NOT_FOUND, "")

    def _credentials(self) -> str:
        return json.dumps(self._fields("Token")) if self.text is None else self.text

    def _fields(self, token: str) -> dict[str, str]:
        expires = datetime.fromtimestamp(self.expires_s, UTC).isoformat().replace("+00:00", "Z")
        return {
            "AccessKeyId": self.key,
            "SecretAccessKey": f"secret of {self.key}",
            token: "t",
            "Expiration": expires,
        }

    def _assumed_role(self, form: dict[str, str]) -> tuple[HTTPStatus, str]:
        if form.get("WebIdentityToken") != self.web_token:
            error = "<Error><Code>InvalidIdentityToken</Code><Message>secret</Message></Error>"
            return HTTPStatus.BAD_REQUEST, f"<ErrorResponse>{error}</ErrorResponse>"
        fields = "".join(f"<{name}>{value}</{name}>" for name, value in self._fields("SessionToken").items())
        answer = f'<AssumeRoleWithWebIdentityResponse xmlns="{STS}"><Credentials>{fields}</Credentials>'
        return HTTPStatus.OK, f"{answer}</AssumeRoleWithWebIdentityResponse>" if self.text is None else self.text


class _MetadataAnswers(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        service: MetadataService = self.server.service  # type: ignore[attr-defined]
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0))).decode()
        status, text = service.answer(self.command, self.path, headers, body)
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_PUT = do_POST = _answer  # noqa: N815 - as http.server has them

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server has it
        """Log nothing."""


@contextmanager
def metadata_service() -> Iterator[MetadataService]:
    """Run the service."""
    with ThreadingHTTPServer((HOST, 0), _MetadataAnswers) as server:
        server.daemon_threads = True
        service = server.service = MetadataService(server.server_address[1])  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield service
        finally:
            server.shutdown()
            thread.join()
