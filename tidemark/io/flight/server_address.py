"""The address of an outbox server, with the token and the certificates that a client needs."""

import ipaddress
import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Self
from urllib.parse import quote, unquote, urlsplit

from tidemark.io.process.secret_sources import KEY_BYTES_MIN, read_key
from tidemark.model.errors import ConfigError
from tidemark.model.secret import Secret

TLS = "grpc+tls"
PLAIN = "grpc"
UNIX = "grpc+unix"
_HOW_TO_COPY = "copy STATE/server.token of the server's host to a file that only you can read, and name it"


class BadServerAddress(ConfigError):
    """An address at which no outbox server can be."""

    hint = f"use {TLS}://HOST:PORT, {PLAIN}://127.0.0.1:PORT (of --insecure-loopback), or {UNIX}:///STATE/server.sock"


class BadToken(ConfigError):
    """A token that is missing or unfit."""

    hint = _HOW_TO_COPY


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where an outbox server listens, and how to connect."""

    url: str
    token: Secret | None = None  # None on a unix socket, which the file's mode protects
    roots: bytes = b""  # certificates in PEM that may sign the server's; empty: those of the host

    @classmethod
    def parse(cls, url: str, token_file: Path | None = None, roots_file: Path | None = None) -> Self:
        """Return an address; raise `BadServerAddress`, or `BadToken` if a TCP port has no token."""
        parts = urlsplit(url)
        if parts.scheme == UNIX:
            if not parts.path.startswith("/") or parts.netloc:
                raise BadServerAddress(f"{url!r} is not the address of a unix socket")
            if parts.query or parts.fragment:
                raise BadServerAddress(
                    f"{url!r} is not the address of a unix socket",
                    hint="write ? and # of a path as %3F and %23: the log of the server shows its address",
                )
            return cls(unix_url(Path(unquote(parts.path, errors="surrogateescape"))))
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme not in (TLS, PLAIN) or not parts.hostname or not port or parts.path.strip("/"):
            raise BadServerAddress(f"{url!r} is not the address of an outbox server")
        if parts.scheme == PLAIN and not is_loopback(parts.hostname):
            raise BadServerAddress(f"{url!r} would send rows and the token unencrypted to another host")
        if token_file is None:
            raise BadToken(
                f"the server at {url} requires a token",
                hint=f"{_HOW_TO_COPY} with tokenFile, or --token-file of cdcctl",
            )
        roots = b""
        if roots_file is not None:
            roots = import_module("tidemark.io.flight.tls_probe").read_roots(roots_file)
        return cls(url, read_token(token_file, "the token"), roots)


def unix_url(path: Path) -> str:
    """Return the URL of a unix socket."""
    return f"{UNIX}://{quote(os.fsencode(path))}"


def flight_location(url: str) -> str:
    """Return the URL of a server as Flight requires it.

    NB: Arrow decodes the path of a unix socket, and gRPC decodes the result again (pyarrow 26).
    """
    prefix = f"{UNIX}://"
    return prefix + quote(url.removeprefix(prefix)) if url.startswith(prefix) else url


def read_token(path: Path, what: str) -> Secret:
    """Return the token in a file; raise `BadToken` if it is unfit, as for the header of a request."""
    token = read_key(path, what, KEY_BYTES_MIN, BadToken)
    if not (token.isascii() and token.decode("ascii").isprintable()):
        raise BadToken(f"{what}, {path}, has characters that are not printable ASCII")
    return Secret(token)


def is_loopback(host: str) -> bool:
    """Return whether a host is this one: a loopback address, or localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
