"""Expressions of SQL on a change: parsed by sqlglot in PostgreSQL's dialect, evaluated by `pyarrow.compute` on batches.

    after.status = 'paid' AND before.status IS DISTINCT FROM after.status

`before.x` and `after.x` are columns of the two sides, `x` is that of the row that the change is about (`before` for a
delete), `change.op`, `change.commit_time`, `change.xid` and `change.origin` describe the change. Names fold to lower
case unless they are quoted, and NULL is not true, as in SQL. Only the operators of `operators` and
`comparisons` are permitted. Everything else is refused when the expression is made; columns and types are checked
when it is bound to a table, where each node is evaluated on no rows. What could have another result than in PostgreSQL
is refused there. An error names line and column.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import sqlglot
from sqlglot import exp

from tidemark.transforms.expressions.casts import without_padding
from tidemark.transforms.expressions.comparisons import COMPARISONS
from tidemark.transforms.expressions.operators import ARITHMETIC, LOGIC, OF_NUMBERS, OF_TEXTS, PATTERNS
from tidemark.transforms.expressions.sql_types import ComparedAs, is_text
from tidemark.transforms.expressions.terms import Binding, Evaluate
from tidemark.transforms.expressions.written_names import called, name_of, offset, word_place
from tidemark.transforms.transform import BadTransform, TableShape, TransformFailed

CHARACTERS_MAX = 10_000
EXCERPT_CHARACTERS = 80  # of the line with the error
_OF_TEXTS: tuple[type[exp.Expr], ...] = (exp.DPipe, *OF_TEXTS, *PATTERNS)
_OPERATORS: tuple[type[exp.Expr], ...] = (*COMPARISONS, *LOGIC, *ARITHMETIC, *OF_NUMBERS, *_OF_TEXTS)
_WORDS = (exp.Is, exp.In, exp.Between, exp.Coalesce, exp.Cast, exp.Collate)
_PARTS = (exp.Paren, exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.DataType, exp.DataTypeParam)
_ALLOWED: tuple[type[exp.Expr], ...] = (*_OPERATORS, *_WORDS, *_PARTS)
_OPTIONS = ("symmetric", "flag", "full_match", "encoding", "format", "default")  # arguments of permitted nodes
PERMITTED = ", ".join(map(name_of, (*(kind for kind in _OPERATORS if kind is not exp.Neg), *_WORDS)))


class BadExpression(BadTransform):
    """An expression that is not permitted, or does not fit a table."""

    hint = "docs/transforms.md lists what an expression may contain"


@dataclass(frozen=True, slots=True)
class BoundExpression:
    """An expression for one version of a table."""

    type: pa.DataType
    evaluate: Evaluate
    where: str

    def values(self, rows: pa.RecordBatch) -> pa.Array:
        """Evaluate for each row."""
        try:
            found = self.evaluate(rows)
        except pa.ArrowInvalid:  # an overflow, a division by zero, a cast. NB: its message may have a value
            raise TransformFailed(f"{self.where}: it failed on the values of a row") from None
        return pa.repeat(found, rows.num_rows) if isinstance(found, pa.Scalar) else found


class SqlExpression:
    """An expression as it is written; `bind` makes it one for a table."""

    def __init__(self, text: str, owner: str) -> None:
        """Parse; `owner` names the transform in messages. Raise `BadExpression`."""
        self.text = text
        self._owner = owner
        if len(text) > CHARACTERS_MAX:
            raise BadExpression(f"{owner}: the expression has more than {CHARACTERS_MAX} characters")
        try:
            trees = [tree for tree in sqlglot.parse(text, dialect="postgres") if tree is not None]
        except sqlglot.ParseError as error:
            found = error.errors[0]
            at = max(0, int(found["col"]) - len(found["highlight"]))  # sqlglot's column is the end of the token
            raise self._error_at(int(found["line"]), at + 1, _syntax_error(found)) from None
        except sqlglot.errors.TokenError:
            raise self._error(len(text), "a quote or a comment is not closed") from None
        except RecursionError:
            raise self._error(0, "too deeply nested") from None
        if len(trees) != 1:
            raise self._error(0, f"one expression is needed, found {len(trees)}")
        self._tree = trees[0]
        for node in self._tree.walk(bfs=False):
            if not isinstance(node, _ALLOWED):
                place, name = self._written(node)
                raise self._error(place, f"{name} is not permitted", hint=f"permitted are {PERMITTED}")
            self._check_form(node)

    def bind(self, shape: TableShape) -> BoundExpression:
        """Check columns and types for a version of a table. Raise `BadExpression`."""
        term = Binding(self._error, shape).term(self._tree)
        return BoundExpression(term.type.arrow, term.evaluate, f"{self._owner} on {shape.table}")

    def bind_condition(self, shape: TableShape) -> BoundExpression:
        """As `bind`, and check that the result is boolean."""
        bound = self.bind(shape)
        if not pa.types.is_boolean(bound.type):
            raise self._error(offset(self._tree), f"a condition is needed, this is {bound.type}")
        return bound

    def bind_text(self, shape: TableShape) -> BoundExpression:
        """As `bind`, and check that the result is text, of which `character(n)` has no padding."""
        term = Binding(self._error, shape).term(self._tree)
        where = f"{self._owner} on {shape.table}"
        if not is_text(term.type.arrow):
            raise self._error(offset(self._tree), f"a text is needed, this is {term.type}", hint="cast it")
        if term.type.kind is not ComparedAs.PADDED:
            return BoundExpression(term.type.arrow, term.evaluate, where)
        return BoundExpression(term.type.arrow, lambda rows: without_padding(term.evaluate(rows)), where)

    def _check_form(self, node: exp.Expr) -> None:
        """Refuse what sqlglot accepts and PostgreSQL reads in another way."""
        if found := [name for name in _OPTIONS if node.args.get(name)]:
            raise self._error(offset(node), f"{called(node)} with {found[0].replace('_', ' ')} is not permitted")
        if isinstance(node, COMPARISONS) and any(isinstance(each, (*COMPARISONS, exp.Is)) for each in _sides(node)):
            raise self._error(offset(node), f"{called(node)} of another comparison needs parentheses around that one")

    def _written(self, node: exp.Expr) -> tuple[int, str]:
        """Return where a node is in the text, and its name as it is written there, or else as SQL spells it."""
        place = word_place(node, self.text)
        if place is None:
            return offset(node), called(node)
        start, end = place
        return start, self.text[start:end] + ("()" if self.text[end:].lstrip().startswith("(") else "")

    def _error(self, offset: int, message: str, hint: str | None = None) -> BadExpression:
        before = self.text[:offset]
        return self._error_at(before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1, message, hint)

    def _error_at(self, line: int, column: int, message: str, hint: str | None = None) -> BadExpression:
        written = self.text.split("\n")[line - 1]
        first = max(0, column - 1 - EXCERPT_CHARACTERS // 2)
        excerpt = written[first : first + EXCERPT_CHARACTERS]
        return BadExpression(f"{self._owner}: line {line}, column {column}: {message}, in: {excerpt}", hint=hint)


def _sides(node: exp.Expr) -> tuple[exp.Expr, exp.Expr]:
    return node.this, node.expression


def _syntax_error(found: Mapping[str, object]) -> str:
    """Return what sqlglot found, in our words: its own name classes of Python."""
    description = str(found["description"])
    at = f'syntax error at or near "{found["highlight"]}"'
    if description.startswith("Required keyword"):
        return f"{at}: an operand or an argument is missing"
    if description.startswith("Expecting "):
        return f"{at}: expected {description.removeprefix('Expecting ')}"
    if description.startswith("The number of provided arguments"):
        return f"{at}: too many arguments"
    return at
