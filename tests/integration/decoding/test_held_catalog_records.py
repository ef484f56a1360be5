"""Records on catalogs that wait until the decoder is needed: the same output, for a fraction of the work."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from tidemark_ctl.commands.decode import decode

from tests.support.processes.captures import config_for
from tests.support.servers.postgres import Cluster, database_in
from tests.support.workloads.random_sessions.crew import storm
from tests.unit.decoder.test_small_transactions import lines_outside_kernels
from tidemark.decode.catalog.mirror import CatalogMirror
from tidemark.decode.transactions.ports import CatalogRow
from tidemark.decode.transactions.skim import Skimmer
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import Xid
from tidemark.runtime.seed.initialise import initialise

STATEMENTS = 1500
FEW, MANY = 20, 120
LINES_A_TABLE = 13_000  # of Python, outside the kernels; 9,300 at the time of writing, 20,600 if no record is held
TEMPORARY = """
    DO $$ BEGIN FOR n IN {first}..{last} LOOP
        CREATE TEMPORARY TABLE collected ON COMMIT DROP AS SELECT i, 'text ' || i AS text FROM generate_series(1, 5) i;
        INSERT INTO kept SELECT * FROM collected;
        COMMIT;
    END LOOP; END $$
"""


def seeded(cluster: Cluster, database: str, folder: Path) -> StateFolder:
    state = StateFolder(folder / "state")
    initialise(config_for(cluster, database), state)
    return state


def printed(cluster: Cluster, state: StateFolder, *options: str) -> bytes:
    """Return the output of `cdcctl decode` over all WAL of the server."""
    arguments = ["--state", str(state.root), "--archive", str(cluster.data / "pg_wal"), *options]
    return CliRunner().invoke(decode, arguments, catch_exceptions=False).stdout_bytes


@pytest.mark.parametrize("rewrites", [0.0, 0.15])
def test_held_records_on_catalogs_change_no_output(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rewrites: float
) -> None:
    applied = 0
    redo_rows = CatalogMirror.redo_rows

    def counted(mirror: CatalogMirror, rows: Sequence[CatalogRow], xid: Xid, top_xid: Xid) -> int:
        nonlocal applied
        count = redo_rows(mirror, rows, xid, top_xid)
        applied += count
        return count

    monkeypatch.setattr(CatalogMirror, "redo_rows", counted)
    with database_in(cluster, "stormy") as database:
        state = seeded(cluster, database, tmp_path)
        with storm(cluster, database, 5, rewrites=rewrites) as crew:
            crew.wait_for(STATEMENTS)
        cluster.sql("SELECT pg_switch_wal()")
        options = ("--database", database, "--transactions")
        held = printed(cluster, state, *options)
        assert applied > STATEMENTS
        monkeypatch.setattr(Skimmer, "file_is_catalog", lambda _skimmer, _locator: None)
        applied = 0
        assert held == printed(cluster, state, *options)
        assert not applied
    assert held.count(b'"schema"') > 100


def test_a_temporary_table_costs_few_lines(cluster: Cluster, tmp_path: Path) -> None:
    with database_in(cluster, "temporary") as database:
        cluster.sql("CREATE TABLE kept (i int, text text)", database)
        cluster.sql("CHECKPOINT")
        state = seeded(cluster, database, tmp_path)
        lines = []
        for first, last in ((0, 1), (2, FEW + 1), (FEW + 2, FEW + MANY + 1)):
            begin = cluster.flush_lsn()
            cluster.sql(TEMPORARY.format(first=first, last=last), database)
            end = cluster.flush_lsn()
            cluster.sql("SELECT pg_switch_wal()")
            options = ("--format", "null", "--from", begin, "--to", end)
            lines.append(lines_outside_kernels(partial(printed, cluster, state, *options)))
        assert (lines[2] - lines[1]) / (MANY - FEW) < LINES_A_TABLE, lines
