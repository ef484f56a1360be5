"""Writes the tests of each row into docs/features.md from the marks in tests/; with --check it only compares.

Both directions are checked: each ID that a file of the project cites has a row, and each row has a test. Otherwise
nothing is written, and the exit code is 1.
"""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "features.md"
TESTS = ROOT / "tests"
ROW = re.compile(r"^\| ([A-Z]\d\d) \| (.+?) \| .*\|$")
CITED = re.compile(r"\b[ILNPX]\d\d\b")
WHERE = ("*.py", "*.pxd", "*.md", "*.toml", "conf/*", "scripts/*", ".importlinter")
NOT_CITATIONS = ("tests/corpus/*", "docs/features.md")


def marked() -> Mapping[str, list[str]]:
    """Return for each ID the modules below tests/ with a test that claims it."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "feature":
                for each in node.args:
                    if isinstance(each, ast.Constant):
                        found[str(each.value)].add(path.relative_to(TESTS).as_posix())
    return {key: sorted(modules) for key, modules in found.items()}


def cited() -> Mapping[str, str]:
    """Return each cited ID, with one file that cites it."""
    command = ["git", "ls-files", "-z", "--", *WHERE, *(f":!{each}" for each in NOT_CITATIONS)]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found: dict[str, str] = {}
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.is_file() and not path.is_symlink():
            for each in CITED.findall(path.read_text(encoding="utf-8", errors="replace")):
                found.setdefault(each, name)
    return found


def lines(page: str, tests: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield the page's lines, each row with its tests."""
    for line in page.splitlines():
        row = ROW.match(line)
        cell = ", ".join(f"`{module}`" for module in tests.get(row[1], ())) if row else ""
        yield f"| {row[1]} | {row[2]} | {cell} |" if row else line


def faults(rows: set[str], tests: Mapping[str, list[str]]) -> Iterator[str]:
    """Return the IDs without a row and the rows without a test."""
    for each, name in sorted(cited().items()):
        if each not in rows:
            yield f"{name} cites {each}, which has no row in docs/features.md"
    for each in sorted(rows - tests.keys()):
        yield f"docs/features.md has {each}, which no test proves"


def main() -> int:
    """Write the page, or compare it."""
    page, tests = PAGE.read_text(encoding="utf-8"), marked()
    rows = {row[1] for line in page.splitlines() if (row := ROW.match(line))}
    if wrong := list(faults(rows, tests)):
        sys.stderr.write("\n".join([*wrong, ""]))
        return 1
    written = "\n".join([*lines(page, tests), ""])
    if "--check" in sys.argv[1:]:
        return int(written != page)
    PAGE.write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
