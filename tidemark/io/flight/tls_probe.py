"""What is known of TLS before a connection is made: the certificates of a file, and whether a server answers by TLS.

Apart from the address, because most processes that have one use no TLS, and loading its modules takes time.
"""

import socket
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from tidemark.io.flight.server_address import BadServerAddress

_PROBE_S = 2.0  # on this host


def uses_tls(url: str) -> bool:
    """Return whether the server at a TCP address answers as TLS does; its certificate is not checked, nothing sent."""
    parts = urlsplit(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=_PROBE_S) as connection:
            connection.settimeout(_PROBE_S)
            context.wrap_socket(connection).close()
    except (OSError, ValueError):
        return False
    return True


def read_roots(path: Path) -> bytes:
    """Return the certificates of a file; raise `BadServerAddress` if it has none."""
    hint = "name a file in PEM with tlsRoots, or --tls-roots of cdcctl"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        content = path.read_bytes()
        context.load_verify_locations(cafile=path)
    except ssl.SSLError:
        pass  # as without a certificate
    except OSError as error:
        raise BadServerAddress(f"the certificates {path} cannot be read: {error.strerror}", hint=hint) from error
    if not context.cert_store_stats()["x509"]:
        raise BadServerAddress(f"{path} has no certificate in PEM", hint=hint)
    return content
