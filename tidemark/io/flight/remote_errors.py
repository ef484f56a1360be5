"""Errors between the outbox server and its clients: ours are sent by name, those of Flight are translated."""

import pyarrow as pa
from pyarrow import flight

from tidemark.io.flight.server_address import PLAIN, TLS, ServerAddress
from tidemark.io.flight.tls_probe import uses_tls
from tidemark.io.host.disk import StateFull
from tidemark.io.readers.outbox import OutboxTrimmed, ReaderLapsed
from tidemark.io.readers.reader_use import OtherReaderKind, ReaderTakenOver
from tidemark.io.state.environment import StateReplaced
from tidemark.io.state.outbox_table import UnknownReader
from tidemark.model.errors import ConfigError, Disposition, ExitCode, StateError, TidemarkError, restored_error
from tidemark.wire.envelope import DamagedValue, NewerValue
from tidemark.wire.json_form import JsonMismatch
from tidemark.wire.outbox_requests import ERROR, RemoteError


class ServerUnreachable(StateError):
    """The outbox server does not answer."""

    disposition = Disposition.RETRY
    exit_code = ExitCode.NODE_UNREACHABLE
    hint = "check that `cdcctl run server` runs there, and host, port and firewall"


class ServerBusy(StateError):
    """The outbox server already runs as many requests, or streams of values, as it may."""

    disposition = Disposition.RETRY
    exit_code = ExitCode.NODE_UNREACHABLE
    hint = "run fewer queries at once, or raise server.streams_max on the server's host"


class TokenRefused(ConfigError):
    """The outbox server does not accept the token."""

    hint = "the token is in STATE/server.token of the server's host: copy it again"


class CertificateRefused(ConfigError):
    """The certificate of the outbox server is not valid for this client."""

    hint = (
        "name the certificate that signed it with tlsRoots, or --tls-roots of cdcctl; it must be valid for the host "
        "in the address"
    )


class CertificateExpired(CertificateRefused):
    """The certificate of the outbox server has expired."""

    hint = "renew server.tls_certificate on the server's host, and restart `cdcctl run server`"


class NotTls(ConfigError):
    """What answers at the address does not use TLS."""

    hint = (
        "check host and port; `cdcctl run server` uses TLS with server.tls_certificate, and without it accepts only "
        "grpc:// and grpc+unix:// on its own host"
    )


class NeedsTls(ConfigError):
    """The server at the address accepts TLS only."""

    hint = f"use {TLS}://HOST:PORT; name the certificate that signed its own with tlsRoots, or --tls-roots of cdcctl"


_KINDS: dict[str, type[TidemarkError]] = {
    kind.__name__: kind
    for kind in (
        ConfigError,
        DamagedValue,
        NewerValue,
        OtherReaderKind,
        OutboxTrimmed,
        ReaderLapsed,
        ReaderTakenOver,
        ServerBusy,
        StateFull,
        StateReplaced,
        UnknownReader,
    )
}


def encoded_error(error: TidemarkError) -> flight.FlightServerError:
    """Return an error of ours as one of Flight."""
    kind = next((of.__name__ for of in type(error).__mro__ if of.__name__ in _KINDS), StateError.__name__)
    sent = RemoteError(kind, str(error), error.hint)
    return flight.FlightServerError(str(error), ERROR.write(sent))


def translated_error(error: pa.ArrowException, address: ServerAddress) -> TidemarkError:
    """Return the error of a call to the server as one of ours."""
    sent = _sent(error)
    if sent is not None:
        return restored_error(_KINDS.get(sent.kind, StateError), sent.message, hint=sent.hint)
    text = _first_line(error)
    if isinstance(error, flight.FlightUnauthenticatedError):
        return TokenRefused(f"the outbox server at {address.url} refuses the token")
    if (refused := _refused_tls(text, address.url)) is not None:
        return refused
    # NB: a server that stops cancels the calls in progress.
    if isinstance(error, flight.FlightUnavailableError | flight.FlightTimedOutError | flight.FlightCancelledError):
        if address.url.startswith(f"{PLAIN}://") and uses_tls(address.url):
            return NeedsTls(f"the server at {address.url} uses TLS")
        return ServerUnreachable(f"the outbox server at {address.url} does not answer: {text}")
    return StateError(f"the outbox server at {address.url} failed: {text}")


def _refused_tls(text: str, url: str) -> ConfigError | None:
    """Return the error for a handshake of TLS that fails each time; None for another text."""
    if "certificate has expired" in text:
        return CertificateExpired(f"the certificate of the outbox server at {url} has expired")
    if "certificate verify failed" in text or "Hostname Verification" in text or "not match" in text:
        return CertificateRefused(
            f"the certificate of the outbox server at {url} is refused: {text.rpartition(': ')[2]}"
        )
    if "wrong version number" in text:  # OpenSSL's words for an answer that is not of TLS
        return NotTls(f"the server at {url} does not use TLS")
    return None


def _sent(error: pa.ArrowException) -> RemoteError | None:
    """Return the error of ours that the server has sent with one of Flight."""
    if not (isinstance(error, flight.FlightError) and error.extra_info):
        return None
    try:
        return ERROR.read(error.extra_info)
    except JsonMismatch:
        return None


def _first_line(error: Exception) -> str:
    """Return the reason of an error of Flight, without its repeated preamble and the server's traceback."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    preamble, separator, reason = text.partition(", with message: ")
    reason = reason if separator and preamble.startswith("Flight returned") else text
    return reason.partition(". Detail:")[0]
