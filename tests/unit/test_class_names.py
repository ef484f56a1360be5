"""A class name means one thing: no two public classes of the product have the same name."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("tidemark", "sidecar", "archiver", "ctl", "pyspark_tidemark")


def test_no_public_class_name_occurs_twice() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(ROOT)))
    assert len(found) > 500
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}
