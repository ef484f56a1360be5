"""Kernels are built all or not at all: each calls others in C, which an interpreted one does not offer."""

import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parents[2] / "setup.py"
PROGRAM = """
import runpy

import Cython.Build
from setuptools import Extension

Cython.Build.cythonize = lambda kernels, **_: [Extension(f"kernels.{name}", [f"{name}.c"]) for name in "abc"]
runpy.run_path("setup.py")
"""
GOOD = "int PyInit_{0}(void);\nint PyInit_{0}(void) {{ return 0; }}\n"
BAD = "this is not C\n"

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler")


def build(folder: Path, sources: dict[str, str], *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "kernels").mkdir(exist_ok=True)
    shutil.copy(SETUP, folder)
    for name, source in sources.items():
        (folder / f"{name}.c").write_text(source)
    command = [sys.executable, "-c", PROGRAM, "build_ext", "--inplace", *options]
    kept = {name: value for name, value in os.environ.items() if name not in {"REQUIRE_CYTHON", "SKIP_CYTHON"}}
    return subprocess.run(
        command, cwd=folder, env={**kept, **environment}, capture_output=True, text=True, timeout=60, check=False
    )


def built(folder: Path) -> list[str]:
    return sorted(path.name.split(".")[0] for path in folder.rglob("*.so"))


@pytest.mark.parametrize("options", [(), ("--parallel", "2")])
def test_a_kernel_that_cannot_be_built_leaves_none_not_even_an_old_one(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    good = {name: GOOD.format(name) for name in "abc"}
    done = build(tmp_path, good, *options)
    assert done.returncode == 0, done.stderr
    assert {"a", "b", "c"} <= set(built(tmp_path / "kernels"))

    done = build(tmp_path, {**good, "a": good["a"] + "\n", "b": BAD}, *options)
    assert done.returncode == 0, done.stderr
    assert "the kernels will run interpreted" in done.stderr
    assert built(tmp_path) == []


def test_a_build_that_skips_kernels_removes_those_of_an_earlier_build(tmp_path: Path) -> None:
    shutil.copy(SETUP, tmp_path)
    old = tmp_path / "tidemark" / "wal" / f"pglz{EXTENSION_SUFFIXES[0]}"
    other = tmp_path / "tidemark" / "wal" / f"other{EXTENSION_SUFFIXES[0]}"
    old.parent.mkdir(parents=True)
    for file in (old, other):
        file.touch()
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "SKIP_CYTHON": "1"}, check=True, capture_output=True)
    assert (old.exists(), other.exists()) == (False, True)


def test_a_kernel_that_cannot_be_built_is_an_error_where_they_are_required(tmp_path: Path) -> None:
    sources = {"a": GOOD.format("a"), "b": BAD, "c": GOOD.format("c")}
    assert build(tmp_path, sources, REQUIRE_CYTHON="1").returncode != 0
