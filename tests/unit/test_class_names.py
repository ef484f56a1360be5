"""A class name means one thing: no public class of the product has a namesake, in tests and scripts neither."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("tidemark", "sidecar", "archiver", "ctl", "pyspark_tidemark")


NAMESAKES = {  # of a class of the product, in tests and scripts: to be renamed
    "Archiving",
    "Clock",
    "Feed",
    "Following",
    "Node",
    "Outcome",
    "Reader",
    "Recorded",
    "Replica",
    "Row",
    "Run",
    "Spread",
    "Stretch",
    "Target",
}


def test_no_public_class_name_occurs_twice() -> None:
    found = public_classes(*PACKAGES)
    assert len(found) > 500
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_no_class_of_tests_or_scripts_is_a_namesake_of_a_class_of_the_product() -> None:
    found = public_classes("tests", "scripts")
    assert found.keys() & public_classes(*PACKAGES).keys() - NAMESAKES == set()


def public_classes(*folders: str) -> dict[str, list[str]]:
    """Return where each public class of these folders is defined."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(ROOT)))
    return found
