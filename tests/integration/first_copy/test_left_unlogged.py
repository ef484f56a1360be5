"""Tables that are unlogged while they are outside the selection: dropped there, or returned."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.first_copy.test_left_tables import capturing_one_table, check_dropped
from tests.integration.replay.test_unselected import Unselected, fill
from tests.support.lakes.lakes import replica_rows
from tests.support.servers.postgres import Cluster
from tidemark.model.change import NO_COMMIT_TIME
from tidemark.pipeline.lake.positions.table_position import TableState

pytestmark = pytest.mark.feature("L03")


@pytest.fixture
def one_table(cluster: Cluster, database: str, tmp_path: Path) -> Iterator[Unselected]:
    with capturing_one_table(cluster, database, tmp_path) as found:
        yield found


@pytest.mark.parametrize("statements", [["ALTER TABLE away SET UNLOGGED", "DROP TABLE away"], None])
@pytest.mark.parametrize("starts", [0, 1])
def test_the_drop_of_an_unlogged_table_that_has_left_the_selection_is_reported(
    one_table: Unselected, statements: list[str] | None, starts: int
) -> None:
    """None: both statements are in one transaction."""
    fill(one_table)
    one_table.land()
    one_table.sql("ALTER TABLE account RENAME TO away")
    for statement in statements or ["BEGIN; ALTER TABLE away SET UNLOGGED; DROP TABLE away; COMMIT"]:
        for _ in range(starts):
            one_table.restart()
        one_table.sql(statement)
    check_dropped(one_table, "away")


@pytest.mark.parametrize("is_late", [False, True])
def test_an_unlogged_table_that_returns_is_live_once_it_is_logged(one_table: Unselected, *, is_late: bool) -> None:
    """`is_late`: it has its former name before it is logged again."""
    fill(one_table)
    one_table.land()
    one_table.sql("ALTER TABLE account RENAME TO away")
    one_table.sql("ALTER TABLE away SET UNLOGGED")
    one_table.sql("INSERT INTO away VALUES (20, 'unlogged')")
    one_table.sql("ALTER TABLE away ADD COLUMN more int DEFAULT 7")
    steps = ["ALTER TABLE {} SET LOGGED", "ALTER TABLE away RENAME TO account"]
    for step in reversed(steps) if is_late else steps:
        one_table.sql(step.format("account" if is_late else "away"))
    one_table.sql("INSERT INTO account VALUES (21, 'returned')")
    one_table.restart()
    one_table.sql("INSERT INTO account VALUES (22, 'last')")
    one_table.land()
    table = one_table.table()
    assert (table.state, table.dropped_us) == (TableState.LIVE, NO_COMMIT_TIME)
    shown = replica_rows(one_table.lake / table.folder, "")
    assert sorted((row["id"], row["note"], row["more"]) for row in shown) == one_table.sidecar.cluster.sql(
        "SELECT id, note, more FROM account ORDER BY id", one_table.sidecar.database
    )
    one_table.sql("DROP TABLE account")
    check_dropped(one_table, "account")


@pytest.mark.parametrize("leaves_first", [False, True])
def test_a_table_that_is_unlogged_for_a_while_outside_the_selection_is_live_when_it_returns(
    one_table: Unselected, *, leaves_first: bool
) -> None:
    fill(one_table)
    one_table.land()
    leave, become_unlogged = "ALTER TABLE account RENAME TO away", "ALTER TABLE {} SET UNLOGGED"
    if leaves_first:
        one_table.sql(leave)
        one_table.sql(become_unlogged.format("away"))
    else:
        one_table.sql(become_unlogged.format("account"))
        one_table.sql(leave)
    one_table.land()
    one_table.sql("ALTER TABLE away SET LOGGED")
    one_table.sql("ALTER TABLE away RENAME TO account")
    one_table.sql("INSERT INTO account VALUES (20, 'returned')")
    one_table.land()
    assert one_table.table().state is TableState.LIVE
    one_table.restart()
    one_table.sql("INSERT INTO account VALUES (21, 'copied')")
    one_table.land()
    table = one_table.table()
    assert (table.state, table.dropped_us) == (TableState.LIVE, NO_COMMIT_TIME)
    shown = replica_rows(one_table.lake / table.folder, "")
    assert sorted((row["id"], row["note"]) for row in shown) == one_table.sidecar.cluster.sql(
        "SELECT id, note FROM account ORDER BY id", one_table.sidecar.database
    )
