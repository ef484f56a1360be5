"""A commit of a Delta table in its file: missing, damaged, or unreadable."""

import errno
import os
from pathlib import Path

import pytest

from tidemark.pipeline.delta_log import commits
from tidemark.pipeline.delta_log.commits import CommitUnreadable, changed_columns, read_commit


def test_a_commit_that_exists_and_cannot_be_read_is_reported_with_a_hint(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    (log / f"{1:020}.json").mkdir(parents=True)  # the file system refuses, as for a file without permission
    (log / f"{2:020}.json").write_text("{")
    with pytest.raises(CommitUnreadable, match=f"{1:020}.json cannot be read: Is a directory") as found:
        read_commit(str(tmp_path), "app", 1)
    assert "owner and mode" in found.value.hint
    assert read_commit(str(tmp_path), "app", 2) is None
    assert read_commit(str(tmp_path), "app", 3) is None


def test_blank_lines_of_a_commit_are_ignored_and_a_commit_without_actions_is_damaged(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    action = '{"commitInfo":{"operation":"WRITE"}}'
    (log / f"{1:020}.json").write_text(f"\n{action}\n \n")
    (log / f"{2:020}.json").write_text(f"{action}\n")
    (log / f"{3:020}.json").write_text("\n \n")
    with_blanks, without, empty = (read_commit(str(tmp_path), "app", version) for version in (1, 2, 3))
    assert with_blanks is not None
    assert without is not None
    assert (with_blanks.foreign, with_blanks.changes_metadata) == (without.foreign, without.changes_metadata)
    assert empty is None


@pytest.mark.parametrize("is_of_disk", [True, False])
def test_an_error_of_the_disk_does_not_count_as_changed_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_of_disk: bool
) -> None:
    def fail(uri: str, version: int) -> None:
        del uri, version
        raise OSError(errno.EIO, os.strerror(errno.EIO)) if is_of_disk else FileNotFoundError(errno.ENOENT, "missing")

    monkeypatch.setattr(commits, "DeltaTable", fail)
    if is_of_disk:
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            changed_columns(str(tmp_path), 1, 2)
    else:
        assert "can no longer be compared" in changed_columns(str(tmp_path), 1, 2)
