"""SIGKILL of a process that writes a lake in an object store: the next one takes it, and each change is there once."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.lakes.scripted_table import ScriptedTable
from tests.support.lakes.store_writer import batches_of
from tests.support.lakes.stored_lake import StoredLake
from tests.support.processes.spark_process import DEADLINE_S, ROOT
from tidemark.pipeline.failpoints import Failpoint

KILLED_AT = [
    f"{point.value}:2" for point in (Failpoint.FILES_WRITTEN, Failpoint.TABLES_DONE, Failpoint.POSITIONS_WRITTEN)
]
BATCHES = len(KILLED_AT) + 2


@pytest.mark.feature("L07")
def test_each_change_is_once_in_the_lake_although_each_process_that_writes_it_is_killed(
    stored: StoredLake, tmp_path: Path
) -> None:
    program = [sys.executable, "-m", "tests.support.lakes.store_writer", stored.root, stored.server.endpoint]
    done = subprocess.run(
        [*program, str(tmp_path), str(BATCHES), *KILLED_AT, ""],
        cwd=ROOT,
        env={**os.environ, **stored.server.environment()},
        timeout=DEADLINE_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    exit_codes = [int(line.rpartition(" ")[2]) for line in done.stdout.splitlines()]
    assert exit_codes == [-signal.SIGKILL] * len(KILLED_AT) + [0], done.stdout + done.stderr
    table = ScriptedTable()
    assert len(list(batches_of(table, BATCHES))) == BATCHES
    stored.check(table)
