"""Merges of a lake beside other programs' maintenance."""

from pathlib import Path

import pytest

from tests.integration.lake.test_lake_changes import Meanwhile, ScriptedLake, assert_exact, describe, optimize, vacuum
from tidemark.io.host.failpoints import arm
from tidemark.pipeline.failpoints import Failpoint


@pytest.mark.feature("L02")
def test_a_merge_is_repeated_after_maintenance_between_its_files_and_its_commit(tmp_path: Path) -> None:
    fed, left = ScriptedLake(tmp_path), [vacuum, optimize, describe, optimize]
    fed.table.commit()
    fed.table.update((5,), {2: "beside maintenance"})
    fed.table.delete((6,))

    def maintain() -> None:
        if left:
            left.pop()(fed, "replica")

    arm(Meanwhile(Failpoint.FILES_WRITTEN, maintain))
    try:
        fed.apply_pending()
    finally:
        arm(None)
    assert not left
    assert_exact(fed)
