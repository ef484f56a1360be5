"""TLS to the node by libpq's own options: a certificate that is checked, for SQL and for the stream alike."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.captures import Sidecar, change_log, replayed
from tests.support.cdcctl import cdcctl, refused, succeeded
from tests.support.postgres import Cluster, new_cluster
from tidemark.model.errors import ExitCode

HBA_TLS = "local all postgres trust\nhostssl all all 127.0.0.1/32 trust\nhostssl replication all 127.0.0.1/32 trust\n"


def certificate(folder: Path, name: str, address: str) -> Path:
    """Make a self-signed certificate for an address; return its file, with the key beside it."""
    path = folder / f"{name}.crt"
    subject = ("-subj", f"/CN={name}", "-addext", f"subjectAltName={address}")
    keys = ("-newkey", "rsa:2048", "-nodes", "-keyout", str(path.with_suffix(".key")), "-days", "2")
    subprocess.run(["openssl", "req", "-x509", *keys, "-out", str(path), *subject], check=True, capture_output=True)
    return path


@pytest.fixture(scope="module")
def node() -> Iterator[Cluster]:
    with new_cluster() as made:
        path = certificate(made.data, "node", "IP:127.0.0.1")
        owner = made.data.stat()
        for file in (path, path.with_suffix(".key")):
            file.chmod(0o600)
            subprocess.run(["chown", f"{owner.st_uid}:{owner.st_gid}", str(file)], check=True)
        made.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        made.configure(ssl="on", ssl_cert_file=path.name, ssl_key_file=path.with_suffix(".key").name)
        made.hba(HBA_TLS)
        yield made


@pytest.mark.feature("P19")
def test_a_verified_connection_carries_seed_and_stream_and_nothing_else_gets_through(
    node: Cluster, tmp_path: Path
) -> None:
    state, where = tmp_path / "state", f"host=127.0.0.1 port={node.port} dbname=postgres user=postgres"
    stranger = certificate(tmp_path, "stranger", "IP:127.0.0.1")
    trusted = tmp_path / "node.crt"
    trusted.write_bytes((node.data / "node.crt").read_bytes())
    for options, code, said in (
        ("sslmode=disable", ExitCode.NODE_UNFIT, "no pg_hba.conf entry"),
        (f"sslmode=verify-full sslrootcert={stranger}", ExitCode.NODE_UNFIT, "certificate verify failed"),
        (f"sslmode=verify-full sslrootcert={tmp_path / 'none'}", ExitCode.NODE_UNFIT, "does not exist"),
    ):
        done = cdcctl("init", "--state", state, "--dsn", f"{where} {options}")
        refused(done, code, said)
        assert not state.exists()
        assert options == "sslmode=disable" or "sslrootcert" in done.err.splitlines()[-1]
    by_name = where.replace("host=127.0.0.1", "host=localhost hostaddr=127.0.0.1")
    done = cdcctl("init", "--state", state, "--dsn", f"{by_name} sslmode=verify-full sslrootcert={trusted}")
    refused(done, ExitCode.NODE_UNFIT, "server certificate for", "localhost")
    dsn = f"{where} sslmode=verify-full sslrootcert={trusted}"
    sidecar = Sidecar(node, "postgres", tmp_path, copy=True, TIDEMARK_CAPTURE__DSN=dsn)
    node.sql("INSERT INTO account VALUES (1, 'copied')")
    node.sql("CHECKPOINT")
    succeeded(cdcctl("init", "--state", state, "--dsn", dsn))
    try:
        sidecar.start()
        node.sql("INSERT INTO account VALUES (2, 'streamed')")
        assert set(replayed(change_log(sidecar.catch_up(), "account"))) == {1, 2}
        encrypted = node.sql("SELECT ssl FROM pg_stat_ssl s JOIN pg_stat_replication r USING (pid)")
        assert encrypted == [(True,)]
    finally:
        sidecar.close()
