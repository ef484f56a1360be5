"""A node that is unfit, down, or another one: the errors of `init`, the sidecar and `tail`, and the recovery."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import NewCluster
from tests.support.processes.captures import Sidecar, change_log, replayed
from tests.support.processes.cdcctl import cdcctl, refused, succeeded
from tests.support.servers.postgres import HBA, HBA_REPLICATION, Cluster, free_port, new_cluster
from tests.support.servers.proxies import as_major, proxy, silence
from tidemark.model.errors import ExitCode

pytestmark = pytest.mark.usefixtures("forked")

ROLE = "cdc"
TABLE = "CREATE TABLE account (id int PRIMARY KEY, note text)"


@pytest.fixture(scope="module")
def node() -> Iterator[Cluster]:
    with new_cluster() as made:
        made.sql(f"CREATE ROLE {ROLE} LOGIN REPLICATION")
        made.sql("CREATE ROLE plain LOGIN")
        made.sql("CREATE DATABASE app")
        made.sql(TABLE, "app")
        made.sql("CHECKPOINT")
        yield made


def init_refused(state: Path, dsn: str, code: ExitCode, *said: str) -> None:
    """Check that `init` refuses a node with this text, and creates nothing."""
    refused(cdcctl("init", "--state", state, "--dsn", dsn), code, *said)
    assert not state.exists()


def test_a_node_without_logical_wal_is_refused_until_it_has_it(new_cluster: NewCluster, tmp_path: Path) -> None:
    made = new_cluster(15, wal_level="replica")
    made.sql(TABLE)
    state = tmp_path / "state"
    init_refused(state, made.dsn(), ExitCode.NODE_UNFIT, "wal_level = replica", str(made.folder))
    made.configure(reload=False, wal_level="logical")
    made.restart()
    succeeded(cdcctl("init", "--state", state, "--dsn", made.dsn()))


def test_a_capture_gets_the_name_that_init_was_given_so_that_two_captures_of_a_cluster_differ(
    node: Cluster, tmp_path: Path
) -> None:
    state, dsn = tmp_path / "state", node.dsn("app", ROLE)
    refused(cdcctl("init", "--state", state, "--dsn", dsn, "--name", "a b"), ExitCode.CONFIG, "--name: capture.name")
    assert not state.exists()
    succeeded(cdcctl("init", "--state", state, "--dsn", dsn, "--name", "second"))
    assert json.loads(succeeded(cdcctl("status", "--state", state, "--json")).out)["capture"] == "second"
    refused(cdcctl("init", "--state", state, "--name", "third"), ExitCode.CONFIG, "--name differs from")


def test_names_that_match_nothing_are_reported(node: Cluster, tmp_path: Path) -> None:
    state, dsn = tmp_path / "state", node.dsn("app", ROLE)
    refused(cdcctl("init", "--state", state, "--dsn", dsn, "--database", "nowhere"), ExitCode.CONFIG, "matches nowhere")
    assert not state.exists(), "a configuration with the wrong database would be kept"
    done = succeeded(cdcctl("init", "--state", state, "--dsn", dsn, "--table", "public.acount"))
    assert "no table matches public.acount" in done.err
    other = tmp_path / "other"
    assert "no table" not in succeeded(cdcctl("init", "--state", other, "--dsn", dsn, "--name", "other")).err


def test_privileges_that_are_missing_are_named_until_they_are_granted(node: Cluster, tmp_path: Path) -> None:
    state = tmp_path / "state"
    init_refused(state, node.dsn("app", "plain"), ExitCode.NODE_UNFIT, "the role plain", "lacks REPLICATION")
    node.sql("REVOKE CONNECT ON DATABASE app FROM PUBLIC")
    try:
        init_refused(state, node.dsn("app", ROLE), ExitCode.NODE_UNFIT, 'permission denied for database "app"')
    finally:
        node.sql("GRANT CONNECT ON DATABASE app TO PUBLIC")
    init_refused(state, node.dsn("nowhere", ROLE), ExitCode.NODE_UNFIT, 'database "nowhere" does not exist')
    init_refused(state, node.dsn("app", "stranger"), ExitCode.NODE_UNFIT, 'role "stranger" does not exist')
    succeeded(cdcctl("init", "--state", state, "--dsn", node.dsn("app", ROLE)))


def test_a_missing_hba_line_is_named_for_sql_and_for_the_stream(node: Cluster, tmp_path: Path) -> None:
    state, dsn = tmp_path / "state", node.dsn("app", ROLE)
    try:
        node.hba(HBA)
        init_refused(state, dsn, ExitCode.NODE_UNFIT, "no pg_hba.conf entry for replication", f'user "{ROLE}"')
        refused(cdcctl("tail", dsn), ExitCode.NODE_UNFIT, "no pg_hba.conf entry for replication")
        node.hba(HBA_REPLICATION)
        init_refused(state, dsn, ExitCode.NODE_UNFIT, "no pg_hba.conf entry for host", 'database "app"')
    finally:
        node.hba(HBA_REPLICATION + HBA)
    succeeded(cdcctl("init", "--state", state, "--dsn", dsn))


def test_a_node_that_is_unreachable_is_named_and_reported_as_unreachable(tmp_path: Path) -> None:
    port = free_port()
    init_refused(
        tmp_path / "state", f"host=127.0.0.1 port={port}", ExitCode.NODE_UNREACHABLE, f"port={port}", "refused"
    )
    with silence() as port:
        dsn = f"host=127.0.0.1 port={port} connect_timeout=2"
        init_refused(tmp_path / "state", dsn, ExitCode.NODE_UNREACHABLE, f"port={port}", "timeout")
    init_refused(tmp_path / "state", "host=no-such-host.invalid", ExitCode.NODE_UNREACHABLE, "no-such-host.invalid")


@pytest.mark.parametrize("major", [13, 19])
def test_a_server_of_an_unsupported_major_is_refused_by_its_number(node: Cluster, tmp_path: Path, major: int) -> None:
    with proxy(node.port, as_major(major, node.major)) as port:
        dsn = f"host=127.0.0.1 port={port} user={ROLE} dbname=app sslmode=disable gssencmode=disable"
        init_refused(tmp_path / "state", dsn, ExitCode.NODE_UNFIT, str(major))
        refused(cdcctl("tail", dsn), ExitCode.NODE_UNFIT, str(major))


def test_requirements_that_the_node_loses_while_the_sidecar_is_down_are_named_and_nothing_is_lost(
    node: Cluster, tmp_path: Path
) -> None:
    """Each loss ends the sidecar at once, before it has delivered the later changes."""
    dsn = node.dsn("app", ROLE)
    node.sql("GRANT SELECT ON account TO cdc", "app")
    sidecar = Sidecar(node, "app", tmp_path, copy=True, TIDEMARK_CAPTURE__DSN=dsn)
    sidecar.init()
    try:
        node.sql("INSERT INTO account VALUES (1, 'while away')", "app")
        node.sql(f"ALTER ROLE {ROLE} NOREPLICATION")
        lost = sidecar.refuses(ExitCode.NODE_UNFIT)  # reported by the stream or by the copy, whichever detects it first
        assert "REPLICATION" in str(lost["hint"])
        node.sql(f"ALTER ROLE {ROLE} REPLICATION")
        node.sql("INSERT INTO account VALUES (2, 'while away')", "app")
        node.hba(HBA)
        sidecar.refuses(ExitCode.NODE_UNFIT, "no pg_hba.conf entry for replication")
        node.hba(HBA_REPLICATION + HBA)
        node.sql("INSERT INTO account VALUES (3, 'while away')", "app")
        sidecar.start()
        node.sql("INSERT INTO account VALUES (4, 'present')", "app")
        assert set(replayed(change_log(sidecar.catch_up(), "account"))) == {1, 2, 3, 4}
    finally:
        sidecar.close()
        node.hba(HBA_REPLICATION + HBA)
        node.sql("TRUNCATE account", "app")


def test_a_sidecar_waits_for_an_unreachable_node_and_loses_nothing(new_cluster: NewCluster, tmp_path: Path) -> None:
    made = new_cluster()
    made.sql(TABLE)
    sidecar = Sidecar(made, "postgres", tmp_path)
    sidecar.init()
    made.sql("INSERT INTO account VALUES (1, 'before')")
    made.stop()
    try:
        sidecar.start()
        sidecar.wait_for_event("no connection to the node so far", kind="NodeUnreachable")
        made.start()
        made.sql("INSERT INTO account VALUES (2, 'after')")
        assert set(replayed(change_log(sidecar.catch_up(), "account"))) == {1, 2}
        assert sidecar.stop() == ExitCode.SUCCESS
    finally:
        sidecar.close()


def test_another_cluster_at_the_nodes_address_is_refused_everywhere_and_the_right_one_continues(
    node: Cluster, new_cluster: NewCluster, tmp_path: Path
) -> None:
    other = new_cluster()
    other.sql("CREATE DATABASE app")
    ((ours,),) = node.sql("SELECT system_identifier FROM pg_control_system()")
    ((theirs,),) = other.sql("SELECT system_identifier FROM pg_control_system()")
    sidecar = Sidecar(node, "app", tmp_path)
    sidecar.init()
    state = sidecar.folder.root
    right, sidecar.options["TIDEMARK_CAPTURE__DSN"] = sidecar.options["TIDEMARK_CAPTURE__DSN"], other.dsn("app")
    try:
        sidecar.refuses(ExitCode.NODE_UNFIT, f"is the cluster {theirs}, not {ours}")
        refused(
            cdcctl("tail", "--state", state, other.dsn("app")), ExitCode.NODE_UNFIT, f"the cluster {theirs}, not {ours}"
        )
        config = tmp_path / "other.toml"
        config.write_text(f'[capture]\ndsn = "{other.dsn("app")}"\n')
        refused(
            cdcctl("init", "--state", state, "--config", config), ExitCode.STATE, str(state), str(theirs), str(ours)
        )
        sidecar.options["TIDEMARK_CAPTURE__DSN"] = right
        node.sql("INSERT INTO account VALUES (1, 'x')", "app")
        sidecar.start()
        assert set(replayed(change_log(sidecar.catch_up(), "account"))) == {1}
    finally:
        sidecar.close()
        node.sql("TRUNCATE account", "app")


def test_a_tail_from_the_past_names_where_it_must_begin_if_the_node_has_removed_that_wal(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    made = new_cluster(15, wal_keep_size="0", max_wal_size="32MB", min_wal_size="32MB")
    made.sql(TABLE)
    state = tmp_path / "state"
    succeeded(cdcctl("init", "--state", state, "--dsn", made.dsn()))
    for _ in range(4):
        made.sql("SELECT pg_logical_emit_message(false, 'fill', '')")
        made.sql("SELECT pg_switch_wal()")
        made.sql("CHECKPOINT")
    ((now,),) = made.sql("SELECT pg_current_wal_lsn()")
    tail = cdcctl("tail", "--state", state, "--from", str(now))
    refused(tail, ExitCode.GAP, "has already been removed")
    assert f"reading for --from {now} begins at 0/" in tail.err
