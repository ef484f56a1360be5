"""Partitioned tables that cease to be roots: their partitions have their own names, and their DROP is delivered."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.first_copy.test_left_tables import ROOTS, check_dropped
from tests.integration.replay.test_unselected import Unselected, capturing
from tests.support.lakes.lakes import replica_rows
from tests.support.servers.postgres import Cluster
from tidemark.io.state.state import StateStore
from tidemark.model.capture_change import CaptureChange
from tidemark.pipeline.lake.positions.table_position import TableState
from tidemark.wire.state.copy_progress import CopyPhase

pytestmark = pytest.mark.feature("P23")


@pytest.fixture(params=[False, True])
def rooted(request: pytest.FixtureRequest, cluster: Cluster, database: str, tmp_path: Path) -> Iterator[Unselected]:
    """A capture of all tables, with the root `account`, which has a partition and two rows."""
    with capturing(cluster, database, tmp_path, copy=request.param) as captured:
        captured.restart(**{ROOTS: "public.account"})
        captured.sql("CREATE TABLE account (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)")
        captured.sql("CREATE TABLE part PARTITION OF account FOR VALUES FROM (0) TO (100)")
        captured.sql("INSERT INTO account VALUES (1, 'first'), (2, 'second')")
        captured.land()
        yield captured


def leave(rooted: Unselected, *, is_renamed: bool) -> str:
    """Let the root become a table without rows of its own; return its name."""
    if is_renamed:
        rooted.sql("ALTER TABLE account RENAME TO former")
        return "former"
    rooted.restart(**{ROOTS: ""})
    return "account"


@pytest.mark.parametrize("starts", [0, 1])
@pytest.mark.parametrize("is_renamed", [False, True])
def test_the_drop_of_a_table_that_is_no_root_any_more_is_reported(
    rooted: Unselected, *, is_renamed: bool, starts: int
) -> None:
    """Its name is still selected. `starts`: those between the leave and the DROP."""
    name = leave(rooted, is_renamed=is_renamed)
    rooted.sql("INSERT INTO part VALUES (3, 'own name')")
    for _ in range(starts):
        rooted.restart()
    rooted.sql(f"ALTER TABLE {name} ADD COLUMN more int")
    rooted.sql(f"DROP TABLE {name} CASCADE")
    rooted.land()
    assert rooted.table("account").state is TableState.DROPPED
    check_dropped(rooted, "account", "part")


@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_table_that_is_no_root_any_more_has_a_break(rooted: Unselected, *, is_renamed: bool) -> None:
    name = leave(rooted, is_renamed=is_renamed)
    rooted.sql("INSERT INTO part VALUES (3, 'own name')")
    rooted.restart()
    rooted.sql(f"ALTER TABLE {name} ADD COLUMN more int")
    rooted.land()
    assert [change for of, change in rooted.events() if of == name] == [CaptureChange.ENDS]
    (gap,) = rooted.table("account").breaks
    assert gap.is_open
    with StateStore.open(rooted.sidecar.folder, read_only=True) as store:
        phases = [
            copy.phase for (_, oid), copy in store.view().copies.items() if oid == rooted.table("account").relation
        ]
    assert phases == [CopyPhase.LEFT]


@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_table_that_is_a_root_again_has_all_rows(rooted: Unselected, *, is_renamed: bool) -> None:
    name = leave(rooted, is_renamed=is_renamed)
    rooted.sql("INSERT INTO part VALUES (3, 'own name')")
    rooted.land()
    if is_renamed:
        rooted.sql(f"ALTER TABLE {name} RENAME TO account")
        rooted.restart()
    else:
        rooted.restart(**{ROOTS: "public.account"})
    rooted.sql("INSERT INTO account VALUES (4, 'returned')")
    rooted.land()
    assert not any(gap.is_open for gap in rooted.table("account").breaks)
    if not rooted.sidecar.config.copy.enabled:
        return
    rows = replica_rows(rooted.lake / rooted.table("account").folder, "")
    assert sorted((row["id"], row["note"]) for row in rows) == rooted.sidecar.cluster.sql(
        "SELECT id, note FROM account ORDER BY id", rooted.sidecar.database
    )
