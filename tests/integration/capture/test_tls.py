"""TLS to the node by libpq's own options: the certificate is checked, for SQL and for the stream."""

import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tests.support.processes.captures import Sidecar, change_log, replayed
from tests.support.processes.cdcctl import cdcctl, refused, succeeded
from tests.support.servers.postgres import Cluster
from tests.support.servers.tls import CERTIFICATE, certificate, tls_cluster, tls_dsn
from tidemark.io.node.copy_stream import QUIET_S, BlockBounds, copied_blocks
from tidemark.model.errors import ExitCode


@pytest.fixture(scope="module")
def node() -> Iterator[Cluster]:
    with tls_cluster() as made:
        made.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        yield made


@pytest.mark.feature("P19")
def test_a_verified_connection_carries_seed_and_stream_and_nothing_else_gets_through(
    node: Cluster, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    stranger = certificate(tmp_path, "stranger", "IP:127.0.0.1")
    trusted = tmp_path / "node.crt"
    trusted.write_bytes((node.data / CERTIFICATE).read_bytes())
    for options, code, said in (
        ("sslmode=disable", ExitCode.NODE_UNFIT, "no pg_hba.conf entry"),
        (f"sslmode=verify-full sslrootcert={stranger}", ExitCode.NODE_UNFIT, "certificate verify failed"),
        (f"sslmode=verify-full sslrootcert={tmp_path / 'none'}", ExitCode.NODE_UNFIT, "does not exist"),
    ):
        done = cdcctl("init", "--state", state, "--dsn", tls_dsn(node, "postgres", options))
        refused(done, code, said)
        assert not state.exists()
        assert options == "sslmode=disable" or "sslrootcert" in done.err.splitlines()[-1]
    dsn = tls_dsn(node, "postgres", f"sslmode=verify-full sslrootcert={trusted}")
    by_name = dsn.replace("host=127.0.0.1", "host=localhost hostaddr=127.0.0.1")
    done = cdcctl("init", "--state", state, "--dsn", by_name)
    refused(done, ExitCode.NODE_UNFIT, "server certificate for", "localhost")
    sidecar = Sidecar(node, "postgres", tmp_path, copy=True, TIDEMARK_CAPTURE__DSN=dsn)
    node.sql("INSERT INTO account VALUES (1, 'copied')")
    node.sql("CHECKPOINT")
    succeeded(cdcctl("init", "--state", state, "--dsn", dsn))
    try:
        sidecar.start()
        node.sql("INSERT INTO account VALUES (2, 'streamed')")
        assert set(replayed(change_log(sidecar.catch_up(), "account"))) == {1, 2}
        assert sidecar.walsender("ssl") == (True,)
    finally:
        sidecar.close()


def test_rows_received_by_tls_are_returned_in_complete_blocks(node: Cluster) -> None:
    copy = sql.SQL("COPY (SELECT n, 'note ' || n FROM generate_series(1, 300000) n) TO STDOUT").format()
    with psycopg.connect(tls_dsn(node, "postgres", "sslmode=require")) as session:
        begun_s = time.monotonic()
        blocks = list(copied_blocks(session, copy, BlockBounds(50_000, 16 << 20)))
        quiet = 1 + (time.monotonic() - begun_s) / QUIET_S
    assert [block.rows for block in blocks if block.rows] == [50_000] * 6
    assert sum(not block.rows for block in blocks) <= quiet
