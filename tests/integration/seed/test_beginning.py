"""The start of a capture without a first copy: after one snapshot; no transaction that commits after `init` is lost."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.processes.captures import Sidecar, change_log, replayed
from tests.support.servers.postgres import Cluster
from tidemark.io.node.node import Blocker
from tidemark.io.process.config import SeedConfig
from tidemark.io.state.state import StateStore
from tidemark.runtime.seed.initialise import initialise
from tidemark.runtime.seed.older_transactions import OlderTransactions
from tidemark.runtime.seed.seed_observer import SilentObserver

DEADLINE_S = 120.0


@pytest.fixture
def database(cluster: Cluster, database: str) -> str:
    cluster.sql("CREATE TABLE account (id int PRIMARY KEY)", database)
    return database


class Telling(SilentObserver):
    """Records when the seed waits, and for which transactions."""

    def __init__(self) -> None:
        self.waits = threading.Event()
        self.names: list[str] = []

    def waiting(self, blockers: Sequence[Blocker], waited_s: float) -> None:
        """Keep the names."""
        del waited_s
        self.names = [str(blocker) for blocker in blockers]
        self.waits.set()


def test_without_a_copy_init_waits_for_open_transactions_and_the_changes_begin_behind_one_snapshot(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    sidecar = Sidecar(cluster, database, tmp_path, copy=False)
    cluster.sql("CHECKPOINT")
    reported = Telling()
    with cluster.connect(database, autocommit=False) as older:
        older.execute("INSERT INTO account VALUES (1)")
        init = threading.Thread(target=initialise, args=(sidecar.config, sidecar.folder, reported))
        init.start()
        assert reported.waits.wait(DEADLINE_S)
        assert f"process {older.info.backend_pid}" in reported.names[0]
        older.execute("INSERT INTO account VALUES (2)")
        cluster.sql("INSERT INTO account VALUES (3)", database)
        older.commit()
        init.join(DEADLINE_S)
        assert not init.is_alive()
    cluster.sql("INSERT INTO account VALUES (4)", database)
    try:
        sidecar.start()
        rows = replayed(change_log(sidecar.catch_up(), "account"))
    finally:
        sidecar.close()
    # Changes before the end of `init` are not emitted, later ones are.
    assert set(rows) == {4}


def test_without_a_copy_a_transaction_that_does_not_end_is_named_and_no_state_is_begun(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    sidecar = Sidecar(cluster, database, tmp_path, copy=False)
    cluster.sql("CHECKPOINT")
    impatient = replace(sidecar.config, seed=SeedConfig(wait_s=1.5))
    with cluster.connect(database, autocommit=False) as older:
        older.execute("INSERT INTO account VALUES (1)")
        with pytest.raises(OlderTransactions, match=f"process {older.info.backend_pid}"):
            initialise(impatient, sidecar.folder)
        with StateStore.open(sidecar.folder) as store:
            assert store.view().beginning is None
    assert initialise(impatient, sidecar.folder)
