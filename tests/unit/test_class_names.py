"""A class name means one thing: no two classes have one name, also private and nested ones, in tests and in scripts."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("tidemark", "sidecar", "archiver", "ctl", "pyspark_tidemark", "tests", "scripts")


def test_no_class_name_occurs_twice() -> None:
    found = class_names(*FOLDERS)
    assert len(found) > 900
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_nested_and_private_classes_and_aliases_count() -> None:
    source = "class A:\n  class _B: pass\nif X:\n  C: TypeAlias = int\nD = TypeVar('D')\nE = int\n"
    assert sorted(names_in(ast.parse(source))) == ["A", "B", "C"]


def class_names(*folders: str) -> dict[str, list[str]]:
    """Return where each class or type alias of these folders is defined, by its name without leading underscores."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for name in names_in(ast.parse(path.read_text())):
            found[name].append(str(path.relative_to(ROOT)))
    return found


def names_in(tree: ast.Module) -> Iterator[str]:
    """Yield the names of classes, at any depth, and of annotated type aliases."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name):
                yield name.lstrip("_")
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
                yield name.lstrip("_")
