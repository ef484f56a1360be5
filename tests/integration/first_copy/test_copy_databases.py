"""A first copy of several databases, one of which is dropped or renamed before it is copied."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.processes.captures import Sidecar
from tests.support.servers.postgres import Cluster
from tidemark.io.state.state import StateStore
from tidemark.model.change import ChangeBatch
from tidemark.model.lsn import Oid
from tidemark.wire.state.copy_progress import CopyPhase

FIRST, SECOND, LATER = "copied_first", "copied_second", "copied_later"
TABLE = "CREATE TABLE account (id int PRIMARY KEY); INSERT INTO account SELECT generate_series(1, 10)"


@pytest.fixture
def sidecar(cluster: Cluster, tmp_path: Path) -> Iterator[Sidecar]:
    """Return a sidecar of two databases, and of one called `LATER` if it exists."""
    made = Sidecar(cluster, FIRST, tmp_path, copy=True, TIDEMARK_SELECT__DATABASES="copied_*")
    made.config = replace(made.config, select=replace(made.config.select, databases=("copied_*",)))
    try:
        for name in (FIRST, SECOND):
            cluster.sql(f"CREATE DATABASE {name}")
            cluster.sql(TABLE, name)
        made.init()
        yield made
    finally:
        made.close()
        for name in (FIRST, SECOND, LATER):
            cluster.sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def oid_of(cluster: Cluster, name: str) -> Oid:
    ((oid,),) = cluster.sql(f"SELECT oid::int8 FROM pg_database WHERE datname = '{name}'")
    return Oid(oid)


def changed_before_its_copy(sidecar: Sidecar, *changes: str) -> None:
    """Start the sidecar, and change the databases while it waits for the first one's table."""
    with sidecar.cluster.connect(FIRST, autocommit=False) as owner:
        owner.execute("LOCK TABLE account IN ACCESS EXCLUSIVE MODE")
        sidecar.start(wait=False)
        sidecar.wait_for_event("first copy planned", tables=2)
        for change in changes:
            sidecar.cluster.sql(change)
    sidecar.wait_for_event("first copy done")


def copied(sidecar: Sidecar) -> dict[Oid, int]:
    """Return the number of copied rows of each database."""
    found: dict[Oid, int] = {}
    for item in sidecar.catch_up():
        if isinstance(item, ChangeBatch):
            found[item.database] = found.get(item.database, 0) + item.rows.num_rows
    return found


def test_a_database_that_is_dropped_before_its_copy_ends_no_first_copy(sidecar: Sidecar) -> None:
    first, second = (oid_of(sidecar.cluster, name) for name in (FIRST, SECOND))
    changed_before_its_copy(sidecar, f"DROP DATABASE {SECOND}")
    assert copied(sidecar) == {first: 10}
    with StateStore.open(sidecar.folder) as store:
        phases = {copy.phase for key, copy in store.view().copies.items() if key[0] == second}
    assert phases <= {CopyPhase.DONE}


def test_a_database_that_is_renamed_before_its_copy_is_copied_by_its_new_name(sidecar: Sidecar) -> None:
    """By then another one may have its old name."""
    first, second = (oid_of(sidecar.cluster, name) for name in (FIRST, SECOND))
    changed_before_its_copy(
        sidecar, f"ALTER DATABASE {SECOND} RENAME TO {LATER}", f"CREATE DATABASE {SECOND} TEMPLATE template0"
    )
    assert copied(sidecar) == {first: 10, second: 10}


def test_a_database_that_leaves_the_selection_before_its_copy_is_not_copied(sidecar: Sidecar) -> None:
    first, second = (oid_of(sidecar.cluster, name) for name in (FIRST, SECOND))
    sidecar.options["TIDEMARK_SELECT__EXCLUDE_DATABASES"] = LATER
    changed_before_its_copy(sidecar, f"ALTER DATABASE {SECOND} RENAME TO {LATER}")
    assert copied(sidecar) == {first: 10}
    with StateStore.open(sidecar.folder) as store:
        phases = {copy.phase for key, copy in store.view().copies.items() if key[0] == second}
    assert phases <= {CopyPhase.LEFT}
