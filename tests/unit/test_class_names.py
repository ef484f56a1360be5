"""A class name means one thing: no two public classes have one name, also in tests and scripts."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("tidemark", "sidecar", "archiver", "ctl", "pyspark_tidemark", "tests", "scripts")


def test_no_public_class_name_occurs_twice() -> None:
    found = public_classes(*FOLDERS)
    assert len(found) > 500
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def public_classes(*folders: str) -> dict[str, list[str]]:
    """Return where each public class of these folders is defined."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(ROOT)))
    return found
