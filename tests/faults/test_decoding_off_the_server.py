"""The cost of a capture for the server: only sending its WAL, while a slot decodes in the server."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.processes.captures import Sidecar, running
from tests.support.servers.postgres import Cluster, Session, sql
from tests.support.servers.tls import tls_cluster, tls_dsn
from tidemark.model.lsn import parse_lsn

ROWS = 200_000
SLOT = PUBLICATION = "beside"
LOAD = f"INSERT INTO account SELECT i, md5(i::text) FROM generate_series(1, {ROWS}) i"
DECODE = f"""
    SELECT count(*) FROM pg_logical_slot_peek_binary_changes(
        '{SLOT}', NULL, NULL, 'proto_version', '1', 'publication_names', '{PUBLICATION}')"""
LESS = 4  # times; the measured factor is about thirteen


@pytest.fixture
def node() -> Iterator[Cluster]:
    with tls_cluster() as made:
        made.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        made.sql(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
        made.sql(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
        yield made


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


@pytest.mark.feature("N02")
def test_sending_to_another_host_by_tls_costs_the_server_a_fraction_of_a_slot(node: Cluster, tmp_path: Path) -> None:
    dsn = tls_dsn(node, "postgres", "sslmode=require")
    with (
        running(node, "postgres", tmp_path, TIDEMARK_CAPTURE__DSN=dsn, TIDEMARK_DELIVER__CONSUMER="null") as sidecar,
        node.connect() as session,
    ):
        sending_s = sent_s(session, sidecar)
        own, before_s = session.info.backend_pid, cpu_s(session.info.backend_pid)
        ((messages,),) = sql(session, DECODE)
        decoding_s = cpu_s(own) - before_s
    assert messages > ROWS
    assert sending_s * LESS < decoding_s


def sent_s(session: Session, sidecar: Sidecar) -> float:
    """Write the load, and wait until the sidecar has decoded all of it; return the walsender's CPU time."""
    sidecar.wait_for_event("ready")
    walsender, is_encrypted = sidecar.walsender("pid, ssl")
    assert is_encrypted
    before_s = cpu_s(walsender)
    sql(session, LOAD)
    ((written,),) = sql(session, "SELECT pg_current_wal_flush_lsn()")
    sidecar.wait_until(lambda: parse_lsn(str(sidecar.status()["decoded_lsn"])) >= parse_lsn(written), "the load's end")
    return cpu_s(walsender) - before_s
