"""A commit of a Delta table in its file: missing, damaged, or unreadable."""

from pathlib import Path

import pytest

from tidemark.pipeline.lake.commits import CommitUnreadable, read_commit


def test_a_commit_that_is_there_and_cannot_be_read_is_named_with_what_to_do(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    (log / f"{1:020}.json").mkdir(parents=True)  # the file system refuses, as for a file without permission
    (log / f"{2:020}.json").write_text("{")
    with pytest.raises(CommitUnreadable, match=f"{1:020}.json cannot be read: Is a directory") as found:
        read_commit(str(tmp_path), "app", 1)
    assert "owner and mode" in found.value.hint
    assert read_commit(str(tmp_path), "app", 2) is None
    assert read_commit(str(tmp_path), "app", 3) is None
