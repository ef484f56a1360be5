"""Transforms that depend on the name of a database, in a daemon, where the database is renamed."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.first_copy.test_copy_databases import FIRST, LATER, SECOND, changed_before_its_copy, sidecar
from tests.support.plugins.daemons import file_rows, use_config
from tests.support.processes.captures import Sidecar
from tests.support.servers.postgres import sql
from tidemark.model.errors import ExitCode

__all__ = ["sidecar"]  # the fixture

pytestmark = pytest.mark.feature("P15")
RENAME = f"ALTER DATABASE {SECOND} RENAME TO {LATER}"
ROWS = 10
CONFIG = """
[deliver]
consumer = 'tests.support.plugins.recording:SqliteConsumer'
[consumer]
file = '{file}'
[[transforms]]
use = 'tidemark:Route'
to = '{{database}}_{{table}}'
"""
REFUSES_FORMER_NAME = f"""
[[transforms]]
use = 'tests.support.plugins.bad_plugins:DatabaseRefuser'
database = '{SECOND}'
"""


@pytest.fixture
def file(sidecar: Sidecar, tmp_path: Path) -> Path:
    file = tmp_path / "changes.db"
    use_config(CONFIG.format(file=file), sidecar)
    return file


def operations(file: Path, database: str) -> Sequence[str]:
    """Return the operations of the rows that were routed by a name of the database."""
    return [row.op for row in file_rows(file, f"{database}_account")]


def test_copied_rows_are_routed_by_the_name_at_the_copy_before_the_first_change(sidecar: Sidecar, file: Path) -> None:
    changed_before_its_copy(sidecar, RENAME)
    sidecar.wait_until(lambda: len(operations(file, FIRST)) == ROWS, "the rows of the other database")
    sidecar.wait_until(lambda: operations(file, LATER) == ["c"] * ROWS, "the rows")
    assert operations(file, SECOND) == []


def test_a_restart_before_the_rename_uses_the_name_behind_it(sidecar: Sidecar, file: Path) -> None:
    cluster = sidecar.cluster
    sidecar.start()
    sidecar.wait_until(lambda: operations(file, SECOND) == ["c"] * ROWS, "the rows")
    with cluster.connect(FIRST, autocommit=False) as older:
        sql(older, "INSERT INTO account VALUES (-1)")  # a restart begins before it
        cluster.sql(RENAME)
        cluster.sql("INSERT INTO account VALUES (-2)", LATER)
        sidecar.wait_until(lambda: operations(file, LATER) == ["i"], "the row behind the rename")
        assert sidecar.stop() == ExitCode.SUCCESS
        use_config(CONFIG.format(file=file) + REFUSES_FORMER_NAME, sidecar)
        sidecar.start()
        cluster.sql("INSERT INTO account VALUES (-3)", LATER)
        sidecar.wait_until(lambda: operations(file, LATER) == ["i", "i"], "a row after the restart")
        older.commit()
