"""A standalone cluster of another user, who may not read the state folder: its executors write the files of large runs.

They also merge updates, deletes and changes of keys into the replica. Workers are killed in batches, and master and
server are started again: each change is in the lake exactly once.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.support.processes.captures import running
from tests.support.processes.other_host import STOP_S, OtherHost, end, folder_of_others, python_of_others
from tests.support.processes.other_user import NOBODY
from tests.support.processes.served_outbox import served_outbox
from tests.support.processes.spark_process import wait_for
from tests.support.servers.outbox_server import Certificate
from tests.support.servers.postgres import Cluster, database_in, free_port
from tests.support.servers.spark_cluster import SparkCluster
from tidemark.model.errors import ExitCode

WROTE = "executors wrote a run"
MERGED = "executors merged a run"
WITHOUT = "spark has no executors: the driver writes all files itself"
ROWS = 20_000  # about 5 MB of values
EXECUTOR_BYTES = 2 << 20  # not measured: the executors share the cores of the driver here
INSERT = "INSERT INTO account SELECT n, repeat(md5(n::text), 6) FROM generate_series({}, {}) n"
CHANGES = (  # of one transaction; keys move to places between others
    "UPDATE account SET note = repeat(md5(note), 6) WHERE id % 2 = 0",
    "UPDATE account SET id = -id WHERE id % 9 = 1",
    "DELETE FROM account WHERE id % 5 = 3",
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("forked"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: another user needs root"),
]


@pytest.fixture
def others() -> Iterator[Path]:
    with folder_of_others() as folder:
        yield folder


class AccountTable:
    """The table at the source, and in the lake of the other host."""

    def __init__(self, server: Cluster, database: str, lake: Path) -> None:
        self._server, self._database, self._lake = server, database, lake
        self._next = 1
        self._compared = -1  # the replica's version that was compared last

    def sql(self, text: str) -> None:
        self._server.sql(text, self._database)

    def insert(self) -> None:
        """Insert `ROWS` rows in one transaction."""
        self.sql(INSERT.format(self._next, self._next + ROWS - 1))
        self._next += ROWS

    def change(self) -> None:
        """Change most rows in one transaction."""
        self.sql("BEGIN; " + "; ".join(CHANGES) + "; COMMIT")

    def _folder(self, name: str) -> Path:
        return next(iter(self._lake.glob("*/public/account")), self._lake / "none") / name

    def lake_rows(self, name: str) -> pa.Table:
        """Return log or replica; no rows until it has its first commit."""
        folder = self._folder(name)
        if not any(folder.glob("_delta_log/*.json")):
            return pa.table({})
        return DeltaTable(str(folder)).to_pyarrow_table()

    def _replica_version(self) -> int:
        """Return the number of the replica's last commit; -1 before the first one."""
        commits = self._folder("replica").glob("_delta_log/*.json")
        return max((int(commit.stem) for commit in commits if commit.stem.isdecimal()), default=-1)

    def files(self) -> int:
        """Return the number of data files of the log, with those that have no commit yet."""
        return len(list(self._folder("log").glob("*.parquet")))

    def is_equal(self) -> bool:
        """Return whether the replica is as the source is now; a version that differed is not compared again."""
        version = self._replica_version()
        if version == self._compared:
            return False
        self._compared = version
        found = self.lake_rows("replica")
        with self._server.connect(self._database) as session:
            if session.execute("SELECT count(*) FROM account").fetchall() != [(found.num_rows,)]:
                return False
            expected = session.execute("SELECT id, note FROM account ORDER BY id").fetchall()
        ordered = found.sort_by("id")
        return list(zip(ordered["id"].to_pylist(), ordered["note"].to_pylist(), strict=True)) == expected


def written_by_executors(other: OtherHost) -> set[str]:
    return {str(event["table"]).rsplit("/", 1)[1] for event in other.events(WROTE)}


def insert_until_a_job_runs(table: AccountTable, other: OtherHost) -> None:
    files = table.files()
    for _ in range(3):
        table.insert()
    wait_for(lambda: table.files() > files, "a job", other.log)


def merge_through_a_kill(
    table: AccountTable, other: OtherHost, spark: SparkCluster, wait_until_equal: Callable[[str], None]
) -> None:
    """Change rows twice; kill a worker in the second batch."""
    table.change()
    wait_until_equal("what executors merge")
    wait_for(lambda: bool(other.events(MERGED)), "a merge by executors", other.log)
    files = table.files()
    table.change()
    wait_for(lambda: table.files() > files, "a job", other.log)
    spark.kill_worker()
    spark.add_worker()
    wait_until_equal("the merge of a batch in which a worker was killed")


@pytest.mark.feature("L06")
def test_executors_write_large_runs_once_while_worker_master_and_server_end(
    cluster: Cluster, tmp_path: Path, others: Path
) -> None:
    certificate = Certificate.of_years(tmp_path / "tls", 2020, 2050)
    listen = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        database = stack.enter_context(database_in(cluster, "spread"))
        cluster.sql("CREATE TABLE account (id int PRIMARY KEY, note text)", database)
        sidecar = stack.enter_context(running(cluster, database, tmp_path, copy=True))
        state = sidecar.folder.root
        other = OtherHost(others, f"grpc+tls://{listen}", (state / "server.token").read_bytes(), certificate.path)
        table = AccountTable(cluster, database, other.lake)
        spark = stack.enter_context(SparkCluster(others, {**python_of_others()[1], "HOME": str(others)}, NOBODY))
        spark.add_worker()
        spark.add_worker()
        server = ExitStack()
        stack.callback(server.close)
        server.enter_context(served_outbox(state, "--listen", listen, **certificate.settings))
        settings = {"SPARK_LOCAL_IP": "127.0.0.1", "TIDEMARK_LAKE__EXECUTOR_BYTES_MIN": str(EXECUTOR_BYTES)}
        pipeline = other.start("--master", spark.url, **settings)
        stack.callback(end, pipeline)

        def wait_until_equal(what: str) -> None:
            wait_for(lambda: table.is_equal() or pipeline.poll() is not None, what, other.log)
            assert pipeline.poll() is None, other.log()

        table.sql("INSERT INTO account VALUES (0, 'first')")
        wait_until_equal("the first change")
        assert not other.events(WROTE), "a small change is the driver's"
        table.insert()
        wait_until_equal("what executors write")
        wait_for(lambda: written_by_executors(other) == {"log", "replica"}, "log and replica", other.log)

        jobs = len(other.events(WROTE))
        insert_until_a_job_runs(table, other)
        spark.kill_worker()
        wait_until_equal("the changes of a batch in which a worker was killed")
        assert len(other.events(WROTE)) > jobs
        spark.add_worker()

        merge_through_a_kill(table, other, spark, wait_until_equal)

        insert_until_a_job_runs(table, other)
        server.close()
        server.enter_context(served_outbox(state, "--listen", listen, **certificate.settings))
        wait_until_equal("the changes of a batch in which the server was restarted")

        spark.kill_master()
        table.insert()
        wait_until_equal("changes without a master")
        spark.start_master()
        table.sql("UPDATE account SET note = 'changed' WHERE id % 7 = 0")
        wait_until_equal("changes after the master's restart")

        pipeline.terminate()
        assert pipeline.wait(STOP_S) == ExitCode.SUCCESS, other.log()
        log = table.lake_rows("log").select(["_commit_lsn", "_ordinal"])
        assert log.num_rows == log.group_by(log.schema.names).aggregate([]).num_rows
        assert not other.events(WITHOUT)
