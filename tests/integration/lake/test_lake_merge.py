"""Merges of a lake beside other programs' maintenance."""

from pathlib import Path

import pytest

from tests.integration.lake.test_lake_changes import Meanwhile, ScriptedLake, assert_exact, describe, optimize, vacuum
from tidemark.io.host.failpoints import arm
from tidemark.pipeline.failpoints import Failpoint


@pytest.mark.feature("L02")
def test_maintenance_between_the_files_of_a_merge_and_their_commit_has_the_merge_repeated(tmp_path: Path) -> None:
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
