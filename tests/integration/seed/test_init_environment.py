"""`cdcctl init` with the node in the environment, as containers have it."""

import tomllib
from pathlib import Path

from tests.support.processes.cdcctl import cdcctl, reported, succeeded
from tests.support.servers.postgres import Cluster
from tidemark.model.errors import ExitCode


def test_the_node_and_the_databases_may_come_from_the_environment(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    state, dsn = tmp_path / "state", cluster.dsn("postgres")
    chosen = {"TIDEMARK_CAPTURE__DSN": dsn, "TIDEMARK_SELECT__DATABASES": database}
    succeeded(cdcctl("init", "--state", state, **chosen))
    written = tomllib.loads((state / "tidemark.toml").read_text())
    assert (written["capture"]["dsn"], written["select"]["databases"]) == (dsn, [database])
    succeeded(cdcctl("status", "--state", state))
    succeeded(cdcctl("init", "--dsn", cluster.dsn(database), "--state", tmp_path / "other"))
    of_dsn = tomllib.loads((tmp_path / "other" / "tidemark.toml").read_text())
    assert of_dsn["select"]["databases"] == [database]


def test_init_names_the_ways_to_name_a_node(tmp_path: Path) -> None:
    done = cdcctl("init", "--state", tmp_path / "state")
    assert done.code == ExitCode.CONFIG
    message, hint = reported(done.err)
    assert message.endswith("no node is named")
    assert "--dsn, set TIDEMARK_CAPTURE__DSN, or" in hint
