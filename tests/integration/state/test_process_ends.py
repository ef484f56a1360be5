"""The last end of a process: stored in the state, shown by `cdcctl status` and by a metric of the running processes."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.oracles.oracle import ROLE, ensure_role
from tests.support.processes.captures import Sidecar
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.servers.postgres import Cluster
from tidemark.io.host.log_output import configure_logs, get_log
from tidemark.io.process.metrics import LAST_END, LAST_EXIT_CODE
from tidemark.io.process.process_ends import KILLED, last_ends
from tidemark.io.process.run_record import REASON_CHARACTERS_MAX, StateRecord, recorded
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ExitCode, WalGap
from tidemark.model.lsn import SystemIdentifier
from tidemark.wire.control import Json
from tidemark.wire.state.process_log import ProcessEnd
from tidemark.wire.state.values import Identity

IDENTITY = Identity("main", SystemIdentifier(1), "00" * 16, 15, 16 << 20, 1 << 24)
LOG = get_log("test")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    with StateStore.create(StateFolder(tmp_path), IDENTITY) as made:
        yield made


def fail_as(store: StateStore, role: str, error: Exception) -> None:
    with RoleLock.acquire(store.folder, role) as lock, recorded(StateRecord(store), lock.owner, LOG):
        raise error


def ends(store: StateStore) -> dict[str, ProcessEnd]:
    return last_ends(store.folder, store.processes())


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (WalGap("WAL from 0/1 on is gone"), ExitCode.GAP, "WalGap: WAL from 0/1 on is gone"),
        (WalGap("x" * 2 * REASON_CHARACTERS_MAX), ExitCode.GAP, f"WalGap: {'x' * (REASON_CHARACTERS_MAX - 8)}"),
        (ValueError("a row's value"), ExitCode.INTERNAL, "ValueError: internal error"),
    ],
)
def test_an_error_that_ends_a_process_is_kept_with_its_code(
    store: StateStore, error: Exception, code: ExitCode, reason: str
) -> None:
    with pytest.raises(type(error)):
        fail_as(store, "archiver", error)
    found = ends(store)["archiver"]
    assert (found.exit_code, found.reason) == (code, reason)
    assert found.at_us > 0


def test_a_run_without_a_record_of_its_end_was_killed_also_before_the_next_start(store: StateStore) -> None:
    with pytest.raises(WalGap):
        fail_as(store, "sidecar", WalGap("gone"))
    lock = RoleLock.acquire(store.folder, "sidecar")
    left_open = recorded(StateRecord(store), lock.owner, LOG)
    left_open.__enter__()  # and never left, as by SIGKILL
    assert ends(store)["sidecar"].exit_code == ExitCode.GAP  # of the earlier run: the present one holds its lock
    lock.release()
    assert ends(store)["sidecar"] == ProcessEnd(0, None, KILLED)
    with RoleLock.acquire(store.folder, "sidecar") as again, recorded(StateRecord(store), again.owner, LOG) as run:
        assert ends(store)["sidecar"].reason == KILLED
        assert ends(store)["sidecar"].at_us > 0
        run.reason = "SIGTERM"
    assert (ends(store)["sidecar"].exit_code, ends(store)["sidecar"].reason) == (0, "SIGTERM")


def test_a_state_that_cannot_store_the_record_lets_a_process_start_and_end(tmp_path: Path) -> None:
    """A read-only state refuses the transaction as a full disk does."""
    StateStore.create(StateFolder(tmp_path), IDENTITY).close()
    stream = io.StringIO()
    configure_logs("json", "info", stream)
    try:
        with (
            StateStore.open(StateFolder(tmp_path), read_only=True) as store,
            pytest.raises(WalGap, match="gone"),
        ):
            fail_as(store, "sidecar", WalGap("gone"))
    finally:
        configure_logs("json", "info")
    reported = [json.loads(line)["event"] for line in stream.getvalue().splitlines()]
    assert reported == ["the end of the run was not recorded in the state"] * 2


def status(sidecar: Sidecar) -> Json:
    reported = json.loads(succeeded(cdcctl("status", "--json", "--state", sidecar.folder.root)).out)
    found: Json = reported["last_end"]["sidecar"]
    return found


@pytest.mark.feature("I41")
def test_status_and_a_metric_show_how_a_sidecar_ended(cluster: Cluster, database: str, tmp_path: Path) -> None:
    ensure_role(cluster)
    cluster.sql("CREATE TABLE account (id int PRIMARY KEY)", database)
    options = {"TIDEMARK_CAPTURE__DSN": cluster.dsn(database, ROLE)}
    sidecar = Sidecar(cluster, database, tmp_path, copy=True, **options)
    try:
        sidecar.init()
        assert status(sidecar) is None
        sidecar.refuses(ExitCode.NODE_UNFIT, "no SELECT on public.account")
        denied = status(sidecar)
        assert isinstance(denied, dict)
        assert denied["exit_code"] == ExitCode.NODE_UNFIT
        assert "no SELECT on public.account" in str(denied["reason"])
        cluster.sql(f"GRANT SELECT ON account TO {ROLE}", database)
        sidecar.start()
        assert sidecar.metric(f'{LAST_EXIT_CODE}{{capture="main",role="sidecar"}}') == ExitCode.NODE_UNFIT
        assert sidecar.metric(f'{LAST_END}{{capture="main",role="sidecar"}}') > 0
        assert sidecar.stop() == ExitCode.SUCCESS
        stopped = status(sidecar)
        assert isinstance(stopped, dict)
        assert (stopped["exit_code"], stopped["reason"]) == (0, "SIGTERM")
        sidecar.start()
        sidecar.kill()
        assert status(sidecar) == {"at": None, "exit_code": None, "reason": KILLED}
        text = succeeded(cdcctl("status", "--state", sidecar.folder.root)).out.decode()
        assert f"time not known  no exit code  {KILLED}" in text
    finally:
        sidecar.close()
