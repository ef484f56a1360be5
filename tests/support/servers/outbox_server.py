"""An outbox server in this process, and certificates for it."""

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tidemark.engine.selection import Selection
from tidemark.io.flight.outbox_server import Listening, OutboxServer
from tidemark.io.flight.server_metrics import ServerMetrics
from tidemark.io.readers.opened_outbox import open_once
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.secret import Secret

TOKEN = b"0123456789abcdef0123456789abcdef"
STOP_S = 60.0
CA = """
[ca]
default_ca = own
[own]
database = index.txt
serial = serial
new_certs_dir = .
default_md = sha256
policy = names
x509_extensions = host
[names]
commonName = supplied
[host]
subjectAltName = IP:127.0.0.1
basicConstraints = CA:TRUE
"""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A self-signed certificate for 127.0.0.1 with its key, as files in PEM."""

    path: Path
    key: Path

    @property
    def settings(self) -> dict[str, str]:
        """Return the environment of a server that uses it."""
        return {"TIDEMARK_SERVER__TLS_CERTIFICATE": str(self.path), "TIDEMARK_SERVER__TLS_KEY": str(self.key)}

    @classmethod
    def of_years(cls, folder: Path, first: int, last: int) -> "Certificate":
        """Create one that is valid from one year to another; `openssl req` makes none that has expired."""
        folder.mkdir(parents=True)
        for name, text in (("ca.cnf", CA), ("index.txt", ""), ("serial", "01\n")):
            (folder / name).write_text(text)
        made = cls(folder / "server.crt", folder / "server.key")
        key = ["-newkey", "rsa:2048", "-nodes", "-keyout", "server.key", "-out", "request", "-subj", "/CN=127.0.0.1"]
        valid = ["-startdate", f"{first}0101000000Z", "-enddate", f"{last}0101000000Z"]
        signed = ["-selfsign", "-batch", "-config", "ca.cnf", "-keyfile", "server.key", "-in", "request", "-notext"]
        for command in (["req", "-new", *key], ["ca", *signed, "-out", "server.crt", *valid]):
            subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True)
        return made


@contextmanager
def outbox_server(
    state: Path,
    certificate: Certificate | None = None,
    *,
    port: int = 0,
    streams_max: int = 8,
    opened: Callable[[], OutboxReader] | None = None,
    selection: Selection = Selection(),  # noqa: B008 - frozen
) -> Iterator[tuple[OutboxServer, str]]:
    """Serve a state on a port of 127.0.0.1, with TLS if there is a certificate; yield the server and its address.

    `opened` replaces the way in which the server gets the reader of the state.
    """
    scheme = "grpc+tls" if certificate else "grpc"
    pem = (certificate.path.read_bytes(), certificate.key.read_bytes()) if certificate else (b"", b"")
    at = Listening(f"{scheme}://127.0.0.1:{port}", Secret(TOKEN), *pem)
    opening = opened or partial(open_once, StateFolder(state))
    server = OutboxServer(at, opening, streams_max, ServerMetrics("main"), selection)
    try:
        yield server, f"{scheme}://127.0.0.1:{server.port}"
    finally:
        ending = threading.Thread(target=server.shutdown, daemon=True)  # NB: it waits for streams without a bound
        ending.start()
        ending.join(STOP_S)
    assert not ending.is_alive(), "a stream still runs"


def token_file(folder: Path) -> Path:
    """Return a file with the token."""
    path = folder / "token"
    path.touch(0o600)
    path.write_bytes(TOKEN)
    return path
