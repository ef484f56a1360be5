"""Every program in scripts/ installs the packages that it runs, also after the demo alone or in a new tree."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted(
    path
    for path in (ROOT / "scripts").rglob("*")
    if path.is_file() and path.stat().st_mode & 0o100 and path.name != "install"
)
FOR_TESTS = {"atheris", "hypothesis", "mypy", "psutil", "pytest", "tests"}  # `scripts/install` alone omits these
USES = re.compile(r"\.venv/bin/python|\$bin/|\$python")
RUNS = re.compile(r"-m ([\w.]+)|(\w+/\w+\.py)")
INSTALLS = re.compile(r"^.*\bscripts/(?:install dev|install|test|check)\b.*$", re.MULTILINE)


def code(program: Path) -> str:
    lines = program.read_text().splitlines(keepends=True)
    assert lines[0] == "#!/usr/bin/env bash\n", f"{program}: no Python of the system's own has what ours imports"
    return "".join(line for line in lines if not line.lstrip().startswith("#"))


def source(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    found = (path.with_suffix(".py"), path / "__main__.py", path / "__init__.py")
    return next((one for one in found if one.is_file()), None)


def imports(module: str, seen: set[str]) -> Iterator[str]:
    """Yield the packages that a module of scripts/ imports, and those that these import."""
    path = source(module)
    if module in seen or path is None:
        return
    seen.add(module)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            yield name.partition(".")[0]
            if name.startswith("scripts."):
                yield from imports(name, seen)


def needs_tests(text: str) -> bool:
    started = [name or path.removesuffix(".py").replace("/", ".") for name, path in RUNS.findall(text)]
    found = {module.partition(".")[0] for module in started if source(module) or module == "pytest"}
    for module in started:
        found.update(imports(module, set()))
    return bool(found & FOR_TESTS)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT / "scripts")))
def test_a_program_installs_what_it_runs_before_it_runs_it(program: Path) -> None:
    text = code(program)
    installs, uses = INSTALLS.search(text), USES.search(text)
    assert installs is not None
    assert uses is None or installs.start() < uses.start()
    if needs_tests(text):
        assert re.search(r"scripts/(install dev|test|check)", installs.group())


def test_the_programs_are_found_and_what_they_import() -> None:
    assert {path.name for path in PROGRAMS} >= {"chaos", "demo", "fuzz", "kills", "oracle", "test"}
    assert needs_tests(code(ROOT / "scripts" / "chaos"))
    assert needs_tests(code(ROOT / "scripts" / "bench" / "latency"))
    assert not needs_tests(code(ROOT / "scripts" / "demo"))
