"""A commit of a Delta table in its file: missing, damaged, or unreadable."""

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field

from tidemark.pipeline.delta_log import commits
from tidemark.pipeline.delta_log.commits import (
    MARK,
    CommitUnreadable,
    TableCommit,
    changed_columns,
    commits_after,
    read_commit,
)

Action = Mapping[str, Mapping[str, object]]
INFO: Action = {"commitInfo": {"operation": "WRITE", "engineInfo": "other"}}
OURS: Action = {"commitInfo": {"operation": "WRITE", MARK: "app:7"}}
TXN: Action = {"txn": {"appId": "app:commit", "version": 7}}
ROWS: Action = {"add": {"dataChange": True}}
MOVED_ROWS: Action = {"remove": {"dataChange": False}}
BY = "WRITE at version 1 by other"


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

    monkeypatch.setattr(commits, "open_delta", fail)
    if is_of_disk:
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            changed_columns(str(tmp_path), 1, 2)
    else:
        assert "can no longer be compared" in changed_columns(str(tmp_path), 1, 2)


@pytest.mark.parametrize(
    ("actions", "changes"),
    [
        ([INFO, ROWS], BY),
        ([INFO, {"remove": {"path": "x"}}], BY),  # without dataChange: as if it were true
        ([INFO, {"cdc": {"path": "x"}}], BY),
        ([INFO, ROWS, MOVED_ROWS], BY),
        ([INFO, {"add": {"dataChange": False}}, MOVED_ROWS], ""),
        ([INFO, {"metaData": {}}, {"protocol": {}}, {"domainMetadata": {}}], ""),
        ([{"commitInfo": {"operation": "RESTORE", "engineInfo": "other"}}], "RESTORE at version 1 by other"),
        ([MOVED_ROWS], ""),
        ([ROWS], "an unnamed operation at version 1 by an unnamed writer"),
        ([INFO, TXN, ROWS], BY),  # a clone copies application transactions
        ([INFO, TXN], f"{BY}, which sets Tidemark's application transactions"),
        ([{"commitInfo": {"operation": "WRITE", "engineInfo": "other", MARK: "app:8"}}, TXN, ROWS], BY),
        ([{"commitInfo": {"operation": "WRITE", "engineInfo": "other", MARK: "app:None"}}, ROWS], BY),
        ([INFO, {"txn": {"appId": "app2:commit", "version": 7}}], ""),
    ],
)
def test_a_commit_of_another_writer_is_described_if_it_changes_rows(
    tmp_path: Path, actions: list[Action], changes: str
) -> None:
    commit = written(tmp_path, actions)
    assert (commit.foreign, commit.changes) == (True, changes)


def test_a_commit_of_tidemark_has_a_mark_with_the_token_of_its_transaction(tmp_path: Path) -> None:
    commit = written(tmp_path, [OURS, TXN, ROWS])
    assert (commit.foreign, commit.token, commit.changes, commit.changes_metadata) == (False, 7, "", False)
    text = written(tmp_path, [OURS, {"txn": {"appId": "app:commit", "version": "7"}}])
    assert (text.foreign, text.token) == (False, None)


def test_without_marks_application_transactions_identify_a_commit_of_tidemark(tmp_path: Path) -> None:
    actions: list[Action] = [INFO, {"txn": {"appId": "app:sequence", "version": 1}}, ROWS]
    assert not written(tmp_path, actions, unmarked=True).foreign
    assert written(tmp_path, actions).foreign
    assert written(tmp_path, [INFO, ROWS], unmarked=True).foreign
    assert written(tmp_path, [INFO, TXN, ROWS], unmarked=True).foreign, "it has a token, but no mark"


@pytest.mark.parametrize("kind", ["metaData", "protocol"])
def test_a_commit_that_changes_properties_columns_or_the_protocol_is_marked(tmp_path: Path, kind: str) -> None:
    assert written(tmp_path, [INFO, {kind: {}}]).changes_metadata
    assert not written(tmp_path, [INFO, MOVED_ROWS, {"domainMetadata": {}}]).changes_metadata


@pytest.mark.parametrize("line", ["3", "[]", '{"add": 3}'])
def test_a_commit_with_an_action_that_is_no_object_is_damaged(tmp_path: Path, line: str) -> None:
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / f"{1:020}.json").write_text(line)
    assert read_commit(str(tmp_path), "app", 1) is None


def test_the_commits_after_a_version_are_read_up_to_the_last(tmp_path: Path) -> None:
    for version in (1, 2, 4, 5):
        write(tmp_path, [INFO], version)
    found = commits_after(str(tmp_path), "app", 1, 4)
    assert [commit and commit.version for commit in found] == [2, None, 4]


def test_columns_that_differ_between_two_versions_are_named(tmp_path: Path) -> None:
    table = DeltaTable.create(str(tmp_path), pa.schema([("a", pa.int32()), ("b", pa.int32())]))
    table.alter.add_columns([Field.from_arrow(pa.field("c", pa.int32()))])
    assert changed_columns(str(tmp_path), 0, 1) == "columns differ: c"
    assert changed_columns(str(tmp_path), 1, 1) == ""


def written(root: Path, actions: list[Action], *, unmarked: bool = False) -> TableCommit:
    write(root, actions, 1)
    commit = read_commit(str(root), "app", 1, unmarked=unmarked)
    assert commit is not None
    return commit


def write(root: Path, actions: list[Action], version: int) -> None:
    (root / "_delta_log").mkdir(exist_ok=True)
    (root / "_delta_log" / f"{version:020}.json").write_text("\n".join(map(json.dumps, actions)))
