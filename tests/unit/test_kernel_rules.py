"""Parts that several kernels need are defined once: readers of bytes, constants of the formats."""

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.kernels import kernel_modules
from tidemark.wal.byte_readers import read_u16, read_u32, read_u64
from tidemark.wal.versions import RECORD_CRC_AT, RECORD_HEADER_BYTES

ROOT = Path(__file__).parents[2]
READER = re.compile(
    r"^\s*c?p?def\b.*\b(?:read_u16|read_u32|read_u64)\(|^\s*c?p?def\b.*\bfetch\((?:const|data)", re.MULTILINE
)
READERS = {"tidemark/wal/byte_readers.py", "tidemark/wal/byte_readers.pxd", "tidemark/decode/datum/prefetch.pxd"}
MACRO = re.compile(r"#define (TIDEMARK_\w+) (\d+)\b")
C_CONSTANTS = {  # C constants in .pxd files that a file format or another module determines
    "TIDEMARK_HEADER": RECORD_HEADER_BYTES,
    "TIDEMARK_CRC_AT": RECORD_CRC_AT,
}
C_ALONE = {"TIDEMARK_LANE", "TIDEMARK_SHORT"}  # measured widths of a loop: nothing else depends on them
# Integers that several kernels may repeat: masks of a machine word, results of a loop, the distance of prefetching.
OWN = {"AHEAD", "ALL_XIDS", "DIGITS_MAX", "DONE", "MASK_64", "NONE", "ODD", "SIGN_64", "WORD_ONE"}


@pytest.mark.parametrize(("read", "size"), [(read_u16, 2), (read_u32, 4), (read_u64, 8)])
def test_a_reader_reads_its_bytes_little_endian_and_none_behind_the_buffer(
    read: Callable[[bytes, int], int], size: int
) -> None:
    data = bytes(range(0xF0, 0xF0 + size + 1))
    for at in (0, 1):
        assert read(data, at) == int.from_bytes(data[at : at + size], "little")
    with pytest.raises(IndexError):
        read(data, 2)


def test_readers_of_bytes_are_defined_once() -> None:
    files = [path for pattern in ("*.py", "*.pxd") for path in (ROOT / "tidemark").rglob(pattern)]
    found = {path.relative_to(ROOT).as_posix() for path in files if READER.search(path.read_text())}
    assert found == READERS


def test_the_c_constants_of_kernels_equal_those_of_the_formats() -> None:
    found = {
        name: int(value)
        for path in (ROOT / "tidemark").rglob("*.pxd")
        for name, value in MACRO.findall(path.read_text())
        if name not in C_ALONE
    }
    assert found == C_CONSTANTS


def test_no_two_kernels_write_the_same_constant_as_a_number() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for source in (path.with_suffix(".py") for path in (ROOT / "tidemark").rglob("*.pxd")):
        for name in _number_names(source):
            found[name].append(source.relative_to(ROOT).as_posix())
    assert len(found) > 100
    assert {name: paths for name, paths in found.items() if len(paths) > 1 and name not in OWN} == {}


def test_every_test_that_imports_a_kernel_is_among_those_that_run_interpreted_too() -> None:
    listed = "sed -n '/^kernel_tests=(/,/^)/p' scripts/test"
    print_folders = f'source <({listed}); printf "%s\\n" "${{kernel_tests[@]}}"'
    run = subprocess.run(["bash", "-c", print_folders], cwd=ROOT, capture_output=True, text=True, check=True)
    folders = set(run.stdout.split())
    kernels = set(kernel_modules())
    importers = {
        path.parent.relative_to(ROOT).as_posix()
        for group in ("unit", "property")
        for path in (ROOT / "tests" / group).rglob("*.py")
        if kernels & set(_imported(path))
    }
    assert len(importers) > 5
    assert importers - folders == set()
    assert all((ROOT / folder).is_dir() for folder in folders)


def _imported(source: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def _number_names(source: Path) -> list[str]:
    """Return the module's constants that are defined by a number, not by another constant."""
    if not source.exists():  # without a .py file
        return []
    statements = [node for node in ast.parse(source.read_text()).body if isinstance(node, ast.Assign)]
    return [
        target.id
        for node in statements
        if all(
            isinstance(part, ast.Constant | ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop)
            for part in ast.walk(node.value)
        )
        and not any(
            isinstance(part, ast.Constant) and isinstance(part.value, bytes | str) for part in ast.walk(node.value)
        )
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
