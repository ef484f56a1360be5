"""Every package that a module imports is declared: as a dependency, or, in Spark's part, in the extra `spark`.

The tests' environment has all packages, so the import of an undeclared one would not fail.
"""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tidemark.io.host.extras import ICEBERG, SPARK, MissingExtra
from tidemark.model.errors import ExitCode

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("archiver", "ctl", "pyspark_tidemark", "sidecar", "tidemark")
OURS = {"tidemark", "pyspark_tidemark", "tidemark_archiver", "tidemark_ctl", "tidemark_sidecar"}
NEEDS_ICEBERG = "tidemark/pipeline/iceberg/"
NEEDS_SPARK = ("tidemark/pipeline/", "pyspark_tidemark/")
BUILD_ONLY = {"cython"}  # `tidemark.wal.cython_stub` replaces it (test_twins)
NOT_IMPORTED = {"pandas"}  # not by us, but by pyspark, where it passes Arrow batches to Python
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names(requirements: Sequence[str]) -> set[str]:
    return {normal(re.split(r"[\[<>=~! ;]", requirement)[0]) for requirement in requirements}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


CORE = names(PROJECT["dependencies"])
EXTRA = names(PROJECT["optional-dependencies"][SPARK.name])
ICEBERG_EXTRA = names(PROJECT["optional-dependencies"][ICEBERG.name])
DISTRIBUTIONS = {name: {normal(one) for one in found} for name, found in packages_distributions().items()}


@functools.cache
def imports() -> Mapping[str, frozenset[str]]:
    """Return the names of the modules that each module imports, by its path."""
    return {
        str(path.relative_to(ROOT)): frozenset(imported(ast.parse(path.read_text())))
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the names of all modules that a module imports, by statement or by `import_module`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, ast.dump(node)
            assert node.level == 0, ast.dump(node)
            yield node.module
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            (argument,) = node.args
            if isinstance(argument, ast.Constant):
                yield str(argument.value)


def foreign(modules: frozenset[str]) -> set[str]:
    tops = {name.partition(".")[0] for name in modules}
    return tops - OURS - set(sys.stdlib_module_names) - BUILD_ONLY - {"__future__"}


def test_every_imported_package_is_declared_where_it_is_needed() -> None:
    undeclared = {
        (path, name)
        for path, modules in imports().items()
        for name in foreign(modules)
        if not DISTRIBUTIONS[name] & declared_for(path)
    }
    assert not undeclared


def declared_for(path: str) -> set[str]:
    """Return the packages that the module at `path` may import."""
    if path.startswith(NEEDS_ICEBERG):
        return CORE | EXTRA | ICEBERG_EXTRA
    return CORE | EXTRA if path.startswith(NEEDS_SPARK) else CORE


def test_every_declared_package_is_imported() -> None:
    used = {one for modules in imports().values() for name in foreign(modules) for one in DISTRIBUTIONS[name]}
    assert used | NOT_IMPORTED >= CORE | EXTRA | ICEBERG_EXTRA


def test_code_that_runs_without_the_extra_imports_nothing_that_needs_it() -> None:
    needing = {
        (path, name)
        for path, modules in imports().items()
        if not path.startswith(NEEDS_SPARK)
        for name in modules
        if f"{name.replace('.', '/')}/".startswith(NEEDS_SPARK)
    }
    assert not needing


def test_a_missing_extra_is_detected_by_its_declared_packages() -> None:
    assert {normal(name) for name in SPARK.packages} == EXTRA
    assert {normal(name) for name in ICEBERG.packages} == ICEBERG_EXTRA
    SPARK.require()
    ICEBERG.require()
    with pytest.raises(MissingExtra, match=r"pyspark is not installed") as refusal:
        SPARK.require(is_installed=lambda name: name != "pyspark")
    assert refusal.value.hint == 'pip install "tidemark[spark]"'
    assert refusal.value.exit_code is ExitCode.CONFIG


def test_the_comparison_without_the_packages_of_its_extra_names_the_extra() -> None:
    bare = [
        sys.executable,
        "-S",
        "-m",
        "tidemark.pipeline.lake.compare",
    ]  # no site-packages, as where nothing is installed
    done = subprocess.run(bare, check=False, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == ExitCode.CONFIG, done.stderr
    assert 'pip install "tidemark[spark]"' in done.stderr
    assert "Traceback" not in done.stderr
