"""SIGKILL of the sidecar at random moments under load: the outbox holds every change exactly once.

The oracle is the source itself: the sum of the changes must equal the tables by SQL.
"""

import random
from pathlib import Path

import pytest

from tests.support.processes.captures import Sidecar, change_log, replayed
from tests.support.processes.waiting import let_pass, wait_until
from tests.support.servers.postgres import Cluster
from tests.support.workloads.mixed_load import OLD_ROWS, MixedLoad, create_tables

KILLS = 6
PAUSE_S = 0.03  # between a session's transactions: dozens are between two kills
SEED = 20261121
pytestmark = pytest.mark.usefixtures("forked")


@pytest.mark.feature("I18")
@pytest.mark.feature("I23")
@pytest.mark.parametrize("copy", [False, True])
def test_the_outbox_contains_every_change_exactly_once_however_often_the_sidecar_is_killed(
    cluster: Cluster, database: str, tmp_path: Path, *, copy: bool
) -> None:
    create_tables(cluster, database, old_rows=OLD_ROWS if copy else 0)
    small = {
        "TIDEMARK_HISTORY__BASE_EVERY_BYTES": str(8 << 20),
        "TIDEMARK_HISTORY__JOURNAL_FILE_BYTES": str(1 << 16),
        "TIDEMARK_DECODE__MEMORY_BYTES": str(1 << 20),
        "TIDEMARK_DELIVER__GROUP_ROWS_MAX": "200",
    }
    dice = random.Random(SEED)
    sidecar = Sidecar(cluster, database, tmp_path, copy=copy, **small)
    sidecar.init()
    try:
        load = MixedLoad(cluster, database, SEED, pause_s=PAUSE_S)
        with load:
            for _ in range(KILLS):
                sidecar.start()
                before = load.committed
                let_pass(dice.uniform(0.05, 1.5), "a random moment for the kill")
                wait_until(lambda: load.committed > before, "a commit of the load")  # noqa: B023 - at once
                sidecar.kill()
            sidecar.start()
        items = sidecar.catch_up()
    finally:
        sidecar.close()
    for table, column in (("account", "note"), ("letter", "counter"), ("reading", "body")):
        source: dict[object, object] = dict(cluster.sql(f"SELECT id, {column} FROM {table}", database))
        streamed = [row for row in change_log(items, table) if row["_op"] != "r"]
        replica = replayed(newest_copy(streamed))
        assert {number: row[column] for number, row in replica.items()} == source, table


def newest_copy(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Omit the rows of copies that were restarted: those of a smaller generation."""
    newest = max((_generation(row) for row in rows if row["_op"] == "c"), default=0)
    return [row for row in rows if row["_op"] != "c" or _generation(row) == newest]


def _generation(row: dict[str, object]) -> int:
    return int(str(row["_ordinal"])) >> 40
