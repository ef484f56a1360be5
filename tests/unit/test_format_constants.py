"""A constant of PostgreSQL's formats, of time or of the system is defined once; a kernel's copy refers to it."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("tidemark", "sidecar", "archiver", "ctl", "pyspark_tidemark")
LITERAL = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop)
TUNING = ("_S", "_MAX", "_MIN", "_EVERY", "_DEFAULT", "_BYTES", "_MAX_S", "_US", "VERSION", "MODE", "LAST")
"""Endings of names that are choices of one module, or of a format of its own: two may have equal values by chance."""
EQUAL_BY_CHANCE = {
    "OPCODE_MASK",  # XLOG_HEAP_OPMASK and XLOG_XACT_OPMASK
    "MASK_64",  # of two kernels' arithmetic
    "SIGN_64",
}


def test_no_format_constant_is_defined_twice() -> None:
    found: dict[tuple[str, object], list[str]] = defaultdict(list)
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        for constant in literals(ast.parse(path.read_text()), is_kernel=path.with_suffix(".pxd").exists()):
            found[constant].append(str(path.relative_to(ROOT)))
    assert ("XID_MASK", 0xFFFFFFFF) in found
    assert {constant: paths for constant, paths in found.items() if len(paths) > 1} == {}


def test_literals_are_compared_by_name_and_value() -> None:
    source = "A = 1 << 4\n_B = b'x'\nC = A\nD_S = 2\nE = -1\nF = 3 * 5\n"
    assert list(literals(ast.parse(source), is_kernel=False)) == [("A", 16), ("B", b"x"), ("E", -1), ("F", 15)]


def literals(tree: ast.Module, *, is_kernel: bool) -> Iterator[tuple[str, object]]:
    """Yield name and value of constants with a literal value; of a kernel only numbers: its words are C."""
    for node in tree.body:
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
            continue
        name, value = node.targets[0].id.lstrip("_"), value_of(node.value)
        is_local = is_kernel and (not isinstance(value, int) or -16 <= value <= 16)  # its words, and its return codes
        if name.isupper() and value is not None and not (is_local or name.endswith(TUNING) or name in EQUAL_BY_CHANCE):
            yield name, value


def value_of(node: ast.expr) -> object:
    """Return the value of a literal number, text or shift; None: it is computed or refers to another constant."""
    if not all(isinstance(part, LITERAL) for part in ast.walk(node)):
        return None
    return eval(compile(ast.Expression(node), "constant", "eval"), {})
