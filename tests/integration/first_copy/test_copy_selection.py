"""The tables that are captured completely: those that enter the selection in any way are copied, under their OID."""

import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.first_copy.test_first_copy import fill, newest_generation, source_rows
from tests.support.processes.captures import Sidecar, change_log, replayed, running
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.servers.postgres import Cluster
from tidemark.io.process.config import SelectConfig
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state import StateStore
from tidemark.model.change import CopyBoundary
from tidemark.runtime.seed.initialise import initialise
from tidemark.wire.state.copy_progress import CopyPhase
from tidemark.wire.values import ValueKind

ROWS = 3
CAME_IN = "a table was added to the selection; its rows are copied at the next start"


@pytest.fixture
def database(cluster: Cluster, database: str) -> str:
    cluster.sql("CREATE SCHEMA stage", database)
    return database


def phases(sidecar: Sidecar) -> set[CopyPhase]:
    with StateStore.open(sidecar.folder) as store:
        return {copy.phase for copy in store.view().copies.values()}


@pytest.mark.feature("I37")
@pytest.mark.parametrize(
    ("before", "enters"),
    [
        ("stage.account", "ALTER TABLE stage.account SET SCHEMA public"),
        ("public.hidden", "ALTER TABLE hidden RENAME TO account"),
        ("stage.account", "DROP SCHEMA public; ALTER SCHEMA stage RENAME TO public"),
    ],
)
def test_a_table_that_a_rename_adds_to_the_selection_is_reported_and_copied_at_the_next_start(
    cluster: Cluster, database: str, tmp_path: Path, before: str, enters: str
) -> None:
    fill(cluster, database, before, ROWS)
    with running(cluster, database, tmp_path, copy=True, TIDEMARK_SELECT__TABLES="public.account") as sidecar:
        sidecar.catch_up()  # tables that enter before the copy is planned are copied at once
        cluster.sql(enters, database)
        cluster.sql("UPDATE account SET note = 'seen' WHERE id = 1", database)
        assert [row["_op"] for row in change_log(sidecar.catch_up(), "account")] == ["u"]
        assert phases(sidecar) == {CopyPhase.WAITING}
        assert [event["event"] for event in sidecar.events()].count(CAME_IN) == 1
        status = succeeded(cdcctl("status", "--state", sidecar.folder.root))
        assert any(line.strip() == "public.account" for line in status.lines)
        sidecar.kill()
        cluster.sql("UPDATE account SET note = 'seen' WHERE id = 2", database)
        sidecar.start()
        cluster.sql("UPDATE account SET note = 'seen' WHERE id = 3", database)
        items = newest_generation(sidecar.catch_up())
        assert replayed(change_log(items, "account")) == source_rows(sidecar)
        assert phases(sidecar) == {CopyPhase.DONE}


@pytest.mark.feature("I37")
def test_a_table_that_was_excluded_for_a_while_is_copied_again(cluster: Cluster, database: str, tmp_path: Path) -> None:
    fill(cluster, database, rows=ROWS)
    with running(cluster, database, tmp_path, copy=True) as sidecar:
        sidecar.catch_up()
        for excluded in ("public.account", ""):
            sidecar.stop()
            sidecar.options["TIDEMARK_SELECT__EXCLUDE_TABLES"] = excluded
            sidecar.start()
            cluster.sql("UPDATE account SET note = note || '.' WHERE id = 1", database)
            items = sidecar.catch_up()
        assert [item.generation for item in items if isinstance(item, CopyBoundary) and item.begin] == [1, 2]
        assert replayed(change_log(newest_generation(items), "account")) == source_rows(sidecar)


@pytest.mark.feature("I37")
def test_a_table_that_leaves_the_selection_before_its_copy_is_not_copied(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    fill(cluster, database)
    cluster.sql("UPDATE account SET note = repeat(note, 100)", database)
    fill(cluster, database, "other", ROWS)
    small = {"TIDEMARK_SELECT__TABLES": "public.*", "TIDEMARK_DELIVER__GROUP_BYTES_MAX": "262144"}
    sidecar = Sidecar(cluster, database, tmp_path, copy=True, **small)
    sidecar.init(bytes_max=2 << 20)
    try:
        sidecar.start()
        sidecar.wait_for_event("the outbox or its disk is full, delivery waits")
        cluster.sql("ALTER TABLE other SET SCHEMA stage", database)
        with OutboxReader.open(sidecar.folder) as reader:
            reader.register("spark")
            copied: set[str] = set()

            def drained() -> bool:
                head = reader.head()
                held = reader.register("spark").applied
                items = (value.item() for value in reader.read(held, head) if value.header.kind is ValueKind.COPY)
                copied.update(item.relation.qualified_name for item in items if isinstance(item, CopyBoundary))
                reader.confirm("spark", head, head)
                return "first copy done" in [event["event"] for event in sidecar.events()]

            sidecar.wait_until(drained, "the end of the copy")
        assert copied == {"public.account"}
        assert phases(sidecar) == {CopyPhase.DONE, CopyPhase.LEFT}
    finally:
        sidecar.close()


@pytest.mark.feature("I37")
def test_a_table_that_was_created_in_the_stream_is_complete_and_never_copied(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    with running(cluster, database, tmp_path, copy=True) as sidecar:
        sidecar.catch_up()  # it has planned, and found no table
        fill(cluster, database, rows=ROWS)
        sidecar.catch_up()
        assert phases(sidecar) == {CopyPhase.DONE}
        sidecar.stop()
        sidecar.options["TIDEMARK_SELECT__EXCLUDE_TABLES"] = "public.other"
        sidecar.start()
        assert {row["_op"] for row in change_log(sidecar.catch_up(), "account")} == {"i"}
        cluster.sql("DROP TABLE account", database)
        sidecar.catch_up()
        assert phases(sidecar) == set()


@pytest.mark.feature("P22")
def test_a_table_that_a_transaction_older_than_the_seed_creates_is_copied(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    sidecar = Sidecar(cluster, database, tmp_path, copy=True)
    cluster.sql("CHECKPOINT")
    with cluster.connect(database, autocommit=False) as older:
        older.execute("CREATE TABLE account (id int PRIMARY KEY, note text)")
        older.execute("INSERT INTO account VALUES (1, 'x')")
        initialise(sidecar.config, sidecar.folder)
        sidecar.start()
        older.execute("INSERT INTO account VALUES (2, 'y')")
        older.commit()
    try:
        assert replayed(change_log(sidecar.catch_up(), "account")) == source_rows(sidecar)
    finally:
        sidecar.close()


@pytest.mark.parametrize("change", ["DROP DATABASE {other}", "ALTER DATABASE {other} RENAME TO {other}_now"])
def test_a_dropped_or_renamed_database_does_not_prevent_the_plan_of_a_copy(
    cluster: Cluster, database: str, tmp_path: Path, change: str
) -> None:
    other = f"other_{uuid.uuid4().hex[:8]}"
    cluster.sql(f"CREATE DATABASE {other}")
    both = {"TIDEMARK_SELECT__DATABASES": f"{database},{other}*", "TIDEMARK_SELECT__EXCLUDE_TABLES": "*.late"}
    sidecar = Sidecar(cluster, database, tmp_path, copy=True, **both)
    try:
        fill(cluster, database, rows=ROWS)
        fill(cluster, other, "kept", ROWS)
        fill(cluster, other, "late", ROWS)
        sidecar.config = replace(sidecar.config, select=SelectConfig(databases=(database, f"{other}*")))
        sidecar.init()
        sidecar.start()
        sidecar.catch_up()
        sidecar.stop()
        cluster.sql(change.format(other=other))
        sidecar.options["TIDEMARK_SELECT__EXCLUDE_TABLES"] = ""
        sidecar.start()
        items = sidecar.catch_up()
        assert replayed(change_log(items, "account")) == source_rows(sidecar)
        copied = ROWS if "RENAME" in change else 0
        assert len(replayed(change_log(items, "late"))) == copied
    finally:
        sidecar.close()
        cluster.sql(f"DROP DATABASE IF EXISTS {other} WITH (FORCE)")
        cluster.sql(f"DROP DATABASE IF EXISTS {other}_now WITH (FORCE)")
