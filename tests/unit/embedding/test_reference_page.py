"""The reference of the library is current, has each public name once, and examples need no other name."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidemark

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "reference_page.py"
PAGES = ("README.md", "docs/engine.md", "docs/consumers.md", "docs/transforms.md", "docs/debezium.md")
OF_OTHERS = {
    *("None", "bool", "bytes", "float", "frozenset", "int", "object", "str", "tuple", "type", "BaseException"),
    *("AsyncIterator", "Callable", "ClassVar", "Ellipsis", "Iterable", "Iterator", "Mapping", "Sequence"),
    *("Path", "datetime"),
    *("Handled", "UNIT_contra"),  # the type variables of `AsyncHandler` and `Handler`
    *("pa", "DataType", "Field", "RecordBatch", "Schema", "StructArray", "StructType"),  # of pyarrow
}
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_the_reference_is_current() -> None:
    checked = subprocess.run([sys.executable, str(SCRIPT), "--check"], check=False, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_each_public_name_is_in_the_reference_once() -> None:
    page = (ROOT / "docs" / "reference.md").read_text()
    assert sorted(re.findall(r"^### `(\w+)`$", page, re.MULTILINE)) == tidemark.__all__


def test_types_of_public_names_are_public() -> None:
    """Otherwise an application cannot annotate what it passes on, or create a position."""
    lines = (ROOT / "docs" / "reference.md").read_text().splitlines()
    shown = [found[1] for line in lines if (found := re.match(r"- `(\w+[(:].*?)`(?:: |$)", line))]
    signatures = [text for block in BLOCK.findall("\n".join(lines)) for text in block.strip().split("\n\n")]
    used = {name for text in (*shown, *signatures) for name in names_in_annotations(text)}
    assert {"Change", "Lsn", "Relation"} <= used
    assert used - {*tidemark.__all__} <= OF_OTHERS


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("hint: 'TypeDescription | None'", ["None", "TypeDescription"]),
        ('rows(of: Mapping[str, Column], at=Order.TOTAL) -> "Batch"', ["Batch", "Column", "Mapping", "str"]),
        ("Engine(\n    dsn: str,\n    *names: Oid\n)", ["Oid", "str"]),
    ],
)
def test_names_in_annotations_are_found(text: str, names: list[str]) -> None:
    assert sorted(set(names_in_annotations(text))) == names


@pytest.mark.parametrize("page", PAGES)
def test_examples_of_a_page_use_public_names_alone(page: str) -> None:
    blocks = BLOCK.findall((ROOT / page).read_text())
    used = [name for block in blocks for name in names_of_tidemark(ast.parse(block))]
    assert set(used) <= {*tidemark.__all__}


@pytest.mark.parametrize(
    ("package", "needed"),
    [("tidemark-sqlite", {"Consumer", "Delivery"}), ("tidemark-email-domain", {"Transform", "BoundTransform"})],
)
def test_the_example_packages_use_public_names_alone(package: str, needed: set[str]) -> None:
    sources = list((ROOT / "examples" / package).rglob("tidemark_*/*.py"))
    used = {name for path in sources for name in names_of_tidemark(ast.parse(path.read_text()))}
    assert needed <= used <= {*tidemark.__all__}


def test_names_of_modules_of_tidemark_are_found() -> None:
    source = (
        "import tidemark\nfrom tidemark.engine.pool.batch import Batch\nfrom tidemark import Mask\ntidemark.Engine()\n"
    )
    assert sorted(names_of_tidemark(ast.parse(source))) == ["Engine", "Mask", "engine.pool.batch"]


def names_in_annotations(text: str) -> Iterator[str]:
    """Yield the names in the annotations of a field, `name: type`, or of a signature, `name(...) -> type`."""
    tree = ast.parse(f"def {text}: ..." if "(" in text.partition(":")[0] else text)
    for node in ast.walk(tree):
        found = node.returns if isinstance(node, ast.FunctionDef) else getattr(node, "annotation", None)
        for each in ast.walk(found) if found is not None else ():
            if isinstance(each, ast.Name):
                yield each.id
            elif isinstance(each, ast.Constant):
                yield from re.findall(r"\w+", str(each.value))


def names_of_tidemark(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the package that a program uses; a module of it has a dot, or is no public name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "tidemark":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tidemark."):
            yield str(node.module).removeprefix("tidemark.")
        elif isinstance(node, ast.Import):
            yield from (a.name.removeprefix("tidemark.") for a in node.names if a.name.startswith("tidemark."))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tidemark":
            yield node.attr
