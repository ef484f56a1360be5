"""A server that accepts TCP connections only with TLS."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers.postgres import Cluster, new_cluster

HBA_TLS = """\
local all,replication postgres trust
hostssl all,replication all 127.0.0.1/32 trust
"""
CERTIFICATE = "node.crt"


def certificate(folder: Path, name: str, address: str) -> Path:
    """Create a self-signed certificate for an address; return its file, with the key beside it."""
    path = folder / f"{name}.crt"
    subject = ("-subj", f"/CN={name}", "-addext", f"subjectAltName={address}")
    keys = ("-newkey", "rsa:2048", "-nodes", "-keyout", str(path.with_suffix(".key")), "-days", "2")
    subprocess.run(["openssl", "req", "-x509", *keys, "-out", str(path), *subject], check=True, capture_output=True)
    return path


@contextmanager
def tls_cluster() -> Iterator[Cluster]:
    """Run one; its certificate, for 127.0.0.1, is `CERTIFICATE` in its data directory."""
    with new_cluster() as made:
        path = certificate(made.data, Path(CERTIFICATE).stem, "IP:127.0.0.1")
        owner = made.data.stat()
        for file in (path, path.with_suffix(".key")):
            file.chmod(0o600)
            subprocess.run(["chown", f"{owner.st_uid}:{owner.st_gid}", str(file)], check=True)
        made.configure(ssl="on", ssl_cert_file=path.name, ssl_key_file=path.with_suffix(".key").name)
        made.hba(HBA_TLS)
        yield made


def tls_dsn(node: Cluster, database: str, options: str) -> str:
    """Return a connection string over TCP; `options` are libpq's for TLS."""
    return f"host=127.0.0.1 port={node.port} dbname={database} user=postgres {options}"
