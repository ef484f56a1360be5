"""A class name means one thing: no two classes have one name, also private and nested ones, in tests and in scripts."""

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("tidemark", "sidecar", "archiver", "ctl", "pyspark_tidemark")
FOLDERS = (*PRODUCT, "tests", "scripts")


@dataclass(frozen=True, slots=True)
class DefinedNames:
    """The definitions of a module."""

    path: str
    classes: Sequence[str]  # and annotated type aliases
    values: Sequence[tuple[str, str]]  # capitalised names, each with its expression; of the product alone


def test_no_class_name_occurs_twice() -> None:
    found = class_names()
    assert len(found) > 900
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_no_alias_of_a_type_has_the_name_of_another_one_or_of_a_class() -> None:
    found = {name: paths for name, paths in type_names().items() if len(paths) > 1}
    assert found.keys() == {"Buffer"}  # `bytes | bytearray`, in each kernel that reads it
    assert set(found["Buffer"]) == {"bytes | bytearray"}


def test_nested_and_private_classes_and_aliases_count() -> None:
    source = "class A:\n  class _B: pass\nif X:\n  C: TypeAlias = int\nD = TypeVar('D')\nE = int\n"
    assert sorted(names_in(ast.parse(source))) == ["A", "B", "C"]


@functools.cache
def defined_names() -> Sequence[DefinedNames]:
    """Return the definitions of all modules."""
    return [
        definitions_in(path, is_product=folder in PRODUCT)
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]


def definitions_in(path: Path, *, is_product: bool) -> DefinedNames:
    tree = ast.parse(path.read_text())
    values = list(values_in(tree)) if is_product else ()
    return DefinedNames(str(path.relative_to(ROOT)), list(names_in(tree)), values)


def class_names() -> dict[str, list[str]]:
    """Return where each class or type alias is defined, by its name without leading underscores."""
    found: dict[str, list[str]] = defaultdict(list)
    for module in defined_names():
        for name in module.classes:
            found[name].append(module.path)
    return found


def type_names() -> dict[str, list[str]]:
    """Return the definitions of each capitalised name of the product: classes, and values such as type aliases."""
    found: dict[str, list[str]] = defaultdict(list)
    for module in defined_names():
        if module.path.split("/")[0] in PRODUCT:
            for name in module.classes:
                found[name].append(module.path)
            for name, value in module.values:
                found[name].append(value)
    return found


def values_in(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the capitalised names of values that are no variables, with their expressions."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and not is_variable(node.value):
            name = node.targets[0].id
            if is_type_name(name):
                yield name.lstrip("_"), ast.unparse(node.value)


def is_type_name(name: str) -> bool:
    return name.lstrip("_")[:1].isupper() and not name.isupper()


def is_variable(value: ast.expr) -> bool:
    """Return whether a name is a type variable, which belongs to its module."""
    return isinstance(value, ast.Call) and ast.unparse(value.func) in {"TypeVar", "ParamSpec"}


def names_in(tree: ast.Module) -> Iterator[str]:
    """Yield the names of classes, at any depth, and of annotated type aliases."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name):
                yield name.lstrip("_")
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
                yield name.lstrip("_")
