"""The mutations of one module's source: each changes one comparison, guard, early return or bound.

    compare   `<` and `<=`, `>` and `>=` are exchanged; where a comparison is a value, it is also negated
    guard     the test of an `if`, `while`, conditional expression or comprehension is forced true, and forced false
    operand   one operand of `and` or `or` has no effect
    not       a `not` is removed
    assert    an assertion is removed
    exit      a `return`, `raise`, `continue` or `break` is removed
    extreme   `min` and `max`, `any` and `all` are exchanged
    sign      `+` and `-` are exchanged
    entry     an item of a table (a dict at module level) is removed

A mutation that another one implies is left out: a test that detects `a` missing from `a and b` detects a forced true,
and one that detects `a <= b` in place of `a < b` in a guard detects the negation. Left out as well are assertions for
the type checker (`is not None`, `isinstance`), guards at module level (`TYPE_CHECKING`), and tests of `cython.compiled`
with what only the compiled form runs: mutants are tested interpreted.
A forced test is still evaluated: what it assigns and calls remains.

An identifier has no line number: module, function, operator, and the number of that operator in that function.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_BOUNDARY = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_NEGATED = {
    ast.Lt: ">=",
    ast.LtE: ">",
    ast.Gt: "<=",
    ast.GtE: "<",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_TOKEN = re.compile(rb"not\s+in|is\s+not|in|is|<=|>=|==|!=|<|>")
_EXTREMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_EXITS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_TEXT = (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple)


_Place = tuple[str, int, int, str]  # operator, start and end in bytes of the source, replacement


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a module."""

    module: str  # path in the tree
    function: str
    operator: str
    number: int
    start: int  # in bytes of the source
    end: int
    before: str
    after: str

    @property
    def name(self) -> str:
        """The identifier in the module."""
        return f"{self.function} {self.operator} {self.number}"

    @property
    def change(self) -> str:
        """The change in one line, as in the list of equivalent mutants."""
        return f"{_one_line(self.before)} -> {_one_line(self.after)}"

    def apply(self, source: bytes) -> bytes:
        """Return the mutated source."""
        return source[: self.start] + self.after.encode() + source[self.end :]


def mutants_of(module: str, source: bytes) -> list[Mutant]:
    """Return the mutants of a module, in the order of its source."""
    found = sorted(_Finder(source).edits(), key=lambda edit: (edit.start, edit.end, edit.operator, edit.after))
    counts: Counter[tuple[str, str]] = Counter()
    mutants = []
    for edit in found:
        number = counts[edit.function, edit.operator]
        counts[edit.function, edit.operator] += 1
        before = source[edit.start : edit.end].decode()
        mutants.append(Mutant(module, edit.function, edit.operator, number, edit.start, edit.end, before, edit.after))
    return mutants


@dataclass(frozen=True, slots=True)
class _Edit:
    function: str
    operator: str
    start: int
    end: int
    after: str


class _Finder:
    """Finds the mutants of one module."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._tree = ast.parse(source)
        self._line_starts = [0]
        for line in source.splitlines(keepends=True):
            self._line_starts.append(self._line_starts[-1] + len(line))
        self._parents = {child: node for node in ast.walk(self._tree) for child in ast.iter_child_nodes(node)}

    def edits(self) -> Iterator[_Edit]:
        for node in self._interpreted(self._tree):
            function = self._function(node)
            for operator, start, end, after in self._of(node):
                yield _Edit(function, operator, start, end, after)

    def _interpreted(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield `node` and all nodes in it, except those that only the compiled form of a kernel runs."""
        if isinstance(node, ast.If) and ast.unparse(node.test) == "cython.compiled":
            children: Iterable[ast.AST] = node.orelse
        else:
            yield node
            children = ast.iter_child_nodes(node)
        for child in children:
            yield from self._interpreted(child)

    def _of(self, node: ast.AST) -> Iterator[_Place]:
        if isinstance(node, (ast.If, ast.While, ast.IfExp)):
            yield from self._guard(node.test)
        elif isinstance(node, ast.comprehension):
            for test in node.ifs:
                yield from self._guard(test)
        elif isinstance(node, ast.Compare):
            yield from self._compare(node)
        elif isinstance(node, (ast.BoolOp, ast.UnaryOp)):
            yield from self._truth(node)
        elif isinstance(node, ast.stmt):
            yield from self._statement(node)
        else:
            yield from self._expression(node)

    def _expression(self, node: ast.AST) -> Iterator[_Place]:
        if isinstance(node, ast.BinOp) and not isinstance(node.left, _TEXT) and not isinstance(node.right, ast.List):
            yield from self._sign(node.op, self._span(node.left)[1], self._span(node.right)[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _EXTREMES:
            yield "extreme", *self._span(node.func), _EXTREMES[node.func.id]
        elif isinstance(node, ast.Dict) and isinstance(self._parents[node], (ast.Assign, ast.AnnAssign)):
            yield from self._entries(node)

    def _truth(self, node: ast.BoolOp | ast.UnaryOp) -> Iterator[_Place]:
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                yield "operand", *self._span(value), self._forced(value, isinstance(node.op, ast.And))
        elif isinstance(node.op, ast.Not) and not self._is_tested(node):
            yield "not", *self._span(node), self._text(node.operand)

    def _statement(self, node: ast.stmt) -> Iterator[_Place]:
        if isinstance(node, _EXITS):
            if not self._is_implied(node):
                yield "exit", *self._span(node), "pass"
        elif isinstance(node, ast.Assert):
            if not _narrows(node):
                yield "assert", *self._span(node), "pass"
        elif isinstance(node, ast.AugAssign) and not isinstance(node.value, (ast.JoinedStr, ast.List, ast.Tuple)):
            yield from self._sign(node.op, self._span(node.target)[1], self._span(node.value)[0])

    def _guard(self, test: ast.expr) -> Iterator[_Place]:
        if isinstance(test, ast.Constant) or self._function(test) == _MODULE:
            return
        joined = test.op if isinstance(test, ast.BoolOp) else None
        for forced in (True, False):
            implied = ast.And if forced else ast.Or
            if not isinstance(joined, implied):
                yield "guard", *self._span(test), self._forced(test, forced)

    def _compare(self, node: ast.Compare) -> Iterator[_Place]:
        if _narrows(self._parents[node]):
            return
        is_value = not self._is_tested(node)
        lefts = [node.left, *node.comparators[:-1]]
        for left, operation, right in zip(lefts, node.ops, node.comparators, strict=True):
            gap_start, gap_end = self._span(left)[1], self._span(right)[0]
            token = _TOKEN.search(self._source, gap_start, gap_end)
            assert token is not None, ast.unparse(node)
            if type(operation) in _BOUNDARY:
                yield "compare", *token.span(), _BOUNDARY[type(operation)]
            if is_value or len(node.ops) > 1:
                yield "compare", *token.span(), _NEGATED[type(operation)]

    def _sign(self, operation: ast.operator, start: int, end: int) -> Iterator[_Place]:
        if isinstance(operation, (ast.Add, ast.Sub)):
            old, new = ("+", "-") if isinstance(operation, ast.Add) else ("-", "+")
            at = self._source.index(old.encode(), start, end)
            yield "sign", at, at + 1, new

    def _entries(self, node: ast.Dict) -> Iterator[_Place]:
        if not node.keys or self._function(node) != _MODULE:
            return
        starts = [self._entry_start(key, value) for key, value in zip(node.keys, node.values, strict=True)]
        ends = [*starts[1:], self._span(node)[1] - 1]
        for start, end in zip(starts, ends, strict=True):
            yield "entry", start, end, ""

    def _entry_start(self, key: ast.expr | None, value: ast.expr) -> int:
        start = self._span(value if key is None else key)[0]
        return self._source.rindex(b"**", 0, start) if key is None else start

    def _is_tested(self, node: ast.AST) -> bool:
        """Return whether `node` is a guard or an operand, whose truth is always forced."""
        parent = self._parents[node]
        if isinstance(parent, (ast.If, ast.While, ast.IfExp, ast.Assert)):
            return parent.test is node
        return isinstance(parent, ast.BoolOp) or (isinstance(parent, ast.comprehension) and node in parent.ifs)

    def _is_implied(self, node: ast.stmt) -> bool:
        """Return whether removing a statement equals a forced guard, or the statement is no early exit."""
        parent = self._parents[node]
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return parent.body[-1] is node
        return isinstance(parent, ast.If) and parent.body == [node] and not parent.orelse

    def _function(self, node: ast.AST) -> str:
        names = []
        at: ast.AST | None = node
        while at is not None:
            if isinstance(at, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.append(at.name)
            at = self._parents.get(at)
        return ".".join(reversed(names)) or _MODULE

    def _forced(self, test: ast.expr, forced: bool) -> str:  # noqa: FBT001 - what the test is forced to
        return f"(({self._text(test)}) {'or True' if forced else 'and False'})"

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, (ast.expr, ast.stmt)), node
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._line_starts[node.lineno - 1] + node.col_offset
        return start, self._line_starts[node.end_lineno - 1] + node.end_col_offset


_MODULE = "<module>"


def _narrows(statement: ast.AST) -> bool:
    """Return whether a statement is an assertion that only narrows a type."""
    if not isinstance(statement, ast.Assert):
        return False
    test = statement.test
    if isinstance(test, ast.Call):
        return isinstance(test.func, ast.Name) and test.func.id == "isinstance"
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot)


def _one_line(text: str) -> str:
    return " ".join(text.split())
