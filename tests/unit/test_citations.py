"""Each `test_...` that the code or the manual cites exists, and tests replace no private name of the product."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
CITING = ("tidemark", "sidecar", "archiver", "ctl", "pyspark_tidemark", "scripts", "docs", "conf")
SUFFIXES = {".py", ".pxd", ".md", ".toml", ".yml"}
SLEEP = re.compile(r"\b(time\.)?sleep\((?!\))|Event\(\)\.wait\(|pg_sleep\(\d(?!\d)\)")
PLUGIN = "test_decoding"  # of PostgreSQL


def test_each_cited_test_exists() -> None:
    known = {PLUGIN, *_tests()}
    cited = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in _citing()
        for name in re.findall(r"(?<![\w.])test_[a-z0-9_]+", path.read_text())
        if name.removesuffix("_") == name and name not in known and not name.startswith(PLUGIN)
    }
    assert cited == set()


def test_no_test_replaces_a_private_name() -> None:
    """Ruff sees an access to a private name, but no string that contains one."""
    replaced = {
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in (ROOT / "tests").rglob("*.py")
        if "setattr" in (text := path.read_text())
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "setattr"
        for given in call.args[:2]
        if isinstance(given, ast.Constant) and _is_private(str(given.value))
    }
    assert replaced == set()


def test_no_test_sleeps() -> None:
    """Tests wait by a condition, or call `let_pass` with the reason for which time itself must pass."""
    sleeping = {
        f"{path.relative_to(ROOT)}:{number}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if SLEEP.search(line) and path.name != Path(__file__).name
    }
    assert sleeping == set()


def _is_private(target: str) -> bool:
    name = target.rpartition(".")[2]
    return name.startswith("_") and not name.startswith("__")


def _tests() -> Iterator[str]:
    for path in (ROOT / "tests").rglob("*.py"):
        yield path.stem
        yield from re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)


def _citing() -> Iterator[Path]:
    yield from ROOT.glob("*.md")
    for folder in CITING:
        yield from (path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES)
