"""The archive of Spark's classes: one complete file, or none."""

from pathlib import Path

import pytest

from tidemark.io.host.disk import StateFull
from tidemark.io.state.process_folder import ProcessFolder
from tidemark.pipeline.driver import class_archive
from tidemark.pipeline.driver.class_archive import ClassesNotArchived, archive_options, create_archive, find_archive

WRITES = """#!/bin/sh
for argument in "$@"; do case "$argument" in -XX:SharedArchiveFile=*) echo classes > "${argument#*=}";; esac; done
"""


def java(folder: Path, script: str) -> Path:
    """Return a home whose `java` is a script."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(script)
    program.chmod(0o755)
    return folder


def test_a_jvm_gets_no_option_before_there_is_an_archive_or_for_a_path_of_two_words(tmp_path: Path) -> None:
    home = java(tmp_path / "java", WRITES)
    spaced = tmp_path / "two words"
    spaced.mkdir()
    assert archive_options(tmp_path, home) == ""
    created = create_archive(ProcessFolder(tmp_path), home, tmp_path / "classes", "jars")
    assert f"-XX:SharedArchiveFile={created}" in archive_options(tmp_path, home).split()
    create_archive(ProcessFolder(spaced), home, tmp_path / "classes", "jars")
    assert archive_options(spaced, home) == ""


def test_only_the_archive_of_the_last_java_remains_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    first, second = java(tmp_path / "first", WRITES), java(tmp_path / "second", WRITES)
    create_archive(ProcessFolder(tmp_path), first, tmp_path / "classes", "jars")
    (tmp_path / "java-classes" / "unfinished-of-a-killed-run").mkdir()
    created = create_archive(ProcessFolder(tmp_path), second, tmp_path / "classes", "jars")
    assert list(created.parent.iterdir()) == [created] == [find_archive(tmp_path, second)]
    assert created.stat().st_mode & 0o777 == 0o600
    assert archive_options(tmp_path, first) == ""


def test_a_java_that_fails_leaves_the_archive_before_and_nothing_else(tmp_path: Path) -> None:
    home, failing = (
        java(tmp_path / "java", WRITES),
        java(tmp_path / "failing", f"{WRITES}echo 'no space' >&2; exit 1\n"),
    )
    before = create_archive(ProcessFolder(tmp_path), home, tmp_path / "classes", "jars")
    with pytest.raises(ClassesNotArchived, match="no space"):
        create_archive(ProcessFolder(tmp_path), failing, tmp_path / "classes", "jars")
    assert list(before.parent.iterdir()) == [before]
    assert find_archive(tmp_path, home) == before


def test_a_truncated_archive_is_not_used(tmp_path: Path) -> None:
    home = java(tmp_path / "java", WRITES)
    created = create_archive(ProcessFolder(tmp_path), home, tmp_path / "classes", "jars")
    created.write_bytes(created.read_bytes()[:-1])
    assert archive_options(tmp_path, home) == ""


def test_no_archive_is_created_on_a_disk_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "SPACE_MIN_BYTES", 1 << 60)
    with pytest.raises(StateFull, match="GB is free"):
        create_archive(ProcessFolder(tmp_path), java(tmp_path / "java", WRITES), tmp_path / "classes", "jars")
    assert list((tmp_path / "java-classes").iterdir()) == []
