"""The pipeline as another user, who may not read the state folder: it reads from the outbox server alone."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.lakes.lakes import log_rows, rows_by_key_so_far
from tests.support.processes.captures import running
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.processes.other_host import STOP_S, OtherHost, as_nobody, end, folder_of_others
from tests.support.processes.other_user import NOBODY
from tests.support.processes.served_outbox import served_outbox
from tests.support.processes.spark_process import wait_for
from tests.support.servers.outbox_server import Certificate
from tests.support.servers.postgres import Cluster, database_in, free_port
from tests.support.workloads.feeder import make_state
from tidemark.model.errors import ExitCode

OUTAGE = "the outbox server is not available: waiting"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("forked")]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: another user needs root")


@pytest.fixture
def others() -> Iterator[Path]:
    """Return a folder of the other user."""
    with folder_of_others() as folder:
        yield folder


@needs_root
def test_a_pipeline_of_another_user_writes_each_change_once_while_the_server_restarts(
    cluster: Cluster, tmp_path: Path, others: Path
) -> None:
    certificate = Certificate.of_years(tmp_path / "tls", 2020, 2050)
    listen = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        database = stack.enter_context(database_in(cluster, "served"))
        cluster.sql("CREATE TABLE account (id int PRIMARY KEY, note text)", database)
        cluster.sql("INSERT INTO account SELECT n, 'copied' FROM generate_series(1, 500) n", database)
        sidecar = stack.enter_context(running(cluster, database, tmp_path, copy=True))
        state = sidecar.folder.root
        assert not as_nobody(["test", "-r", str(state)], os.environ)
        assert not as_nobody(["test", "-x", str(state)], os.environ)
        token = (state / "server.token").read_bytes()
        other = OtherHost(others, f"grpc+tls://{listen}", token, certificate.path)
        pipeline = other.start()
        stack.callback(end, pipeline)

        def equal() -> bool:
            with cluster.connect(database) as session:
                expected = {row[0]: list(row[1:]) for row in session.execute("SELECT id, note FROM account")}
            assert pipeline.poll() is None, other.log()
            return rows_by_key_so_far(other.lake, "account") == expected

        wait_for(lambda: len(other.events(OUTAGE)) == 1, "the wait", other.log)
        (unreachable,) = other.events(OUTAGE)
        assert f"the outbox server at grpc+tls://{listen} does not answer" in str(unreachable["error"])
        assert "check that `cdcctl run server` runs there" in str(unreachable["hint"])
        with served_outbox(state, "--listen", listen, **certificate.settings):
            wait_for(equal, "the first copy", other.log)
            cluster.sql("UPDATE account SET note = 'changed' WHERE id % 7 = 0", database)
            cluster.sql("DELETE FROM account WHERE id % 11 = 0", database)
            wait_for(equal, "the first changes", other.log)
            assert other.waited_s() == 0
            shown = json.loads(succeeded(cdcctl("status", "--json", "--state", state)).out)["lake"]["spark"]
            assert shown["lake"] == str(other.lake)
        for first in range(1000, 1050, 10):
            cluster.sql(f"INSERT INTO account SELECT n, 'late' FROM generate_series({first}, {first + 9}) n", database)
        wait_for(lambda: len(other.events(OUTAGE)) == 2, "the second wait", other.log)
        assert other.waited_s() > 0
        with served_outbox(state, "--listen", listen, **certificate.settings):
            cluster.sql("UPDATE account SET id = id + 10000 WHERE id = 1", database)
            wait_for(equal, "the changes after the restart", other.log)
            assert other.waited_s() == 0
            pipeline.terminate()
            assert pipeline.wait(STOP_S) == ExitCode.SUCCESS, other.log()
        (folder,) = other.lake.glob("*/public/account")
        log = log_rows(other.lake, str(folder.relative_to(other.lake)))
        assert len(log) == len({(row["_commit_lsn"], row["_ordinal"]) for row in log})
        with cluster.connect(database) as session:
            (count,) = session.execute("SELECT count(*) FROM account").fetchone() or (0,)
        assert sum({"i": 1, "c": 1, "d": -1}.get(str(row["_op"]), 0) for row in log) == count
    assert other.runner.stat().st_uid == NOBODY
    assert other.runner.stat().st_mode & 0o777 == 0o700


@needs_root
def test_a_wrong_token_and_an_unreachable_server_are_one_line_with_the_remedy(tmp_path: Path, others: Path) -> None:
    make_state(tmp_path / "state")
    (tmp_path / "state" / "server.token").touch(0o600)
    (tmp_path / "state" / "server.token").write_bytes(b"0123456789abcdef0123456789abcdef")
    listen = f"127.0.0.1:{free_port()}"
    other = OtherHost(others, f"grpc://{listen}", b"fedcba9876543210fedcba9876543210", None)
    assert other.start("--once").wait(STOP_S) == ExitCode.NODE_UNREACHABLE
    with served_outbox(tmp_path / "state", "--listen", listen, "--insecure-loopback"):
        assert other.start("--once").wait(STOP_S) == ExitCode.CONFIG
    unreachable, refused = other.events("pipeline ends")
    assert "does not answer" in str(unreachable["error"])
    assert str(unreachable["hint"]).endswith("and host, port and firewall")
    assert str(refused["error"]) == f"the outbox server at grpc://{listen} refuses the token"
    assert "STATE/server.token of the server's host" in str(refused["hint"])
    assert "Traceback" not in other.log()
