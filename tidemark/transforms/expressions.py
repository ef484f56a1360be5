"""Expressions of SQL on a change: parsed by sqlglot in PostgreSQL's dialect, evaluated by `pyarrow.compute` on batches.

    after.status = 'paid' AND before.status IS DISTINCT FROM after.status

`before.x` and `after.x` are columns of the two sides, `x` is that of the row that the change is about (`before` for a
delete), `change.op`, `change.commit_time`, `change.xid` and `change.origin` describe the change. Names fold to lower
case unless they are quoted, and NULL is not true, as in SQL. Only the operators of the tables below are permitted.
Everything else is refused when the expression is made; columns and types are checked when it is bound to a table, where
each node is evaluated on no rows. An error names line and column.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp

from tidemark.model.change import AFTER, BEFORE, Op
from tidemark.transforms.transform import BadTransform, TableShape, TransformFailed

CHARACTERS_MAX = 10_000
EXCERPT_CHARACTERS = 80  # of the line with the error
CHANGE_COLUMNS = {"op": "_op", "commit_time": "_commit_time", "xid": "_xid", "origin": "_origin"}
SIDES = {"before": BEFORE, "after": AFTER}
Evaluate = Callable[[pa.RecordBatch], pa.Array]  # or a scalar, for all rows
UnaryFunction = Callable[[pa.Array], pa.Array]
BinaryFunction = Callable[[pa.Array, pa.Array], pa.Array]
Compute = Callable[[Sequence[pa.Array]], pa.Array]


def _distinct(left: pa.Array, right: pa.Array) -> pa.Array:
    both_missing = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.if_else(both_missing, pa.scalar(False), pc.coalesce(pc.not_equal(left, right), pa.scalar(True)))


def _joined(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(left, right, "")


COMPARISONS: Mapping[type[exp.Expr], BinaryFunction] = {
    exp.EQ: pc.equal,
    exp.NEQ: pc.not_equal,
    exp.GT: pc.greater,
    exp.GTE: pc.greater_equal,
    exp.LT: pc.less,
    exp.LTE: pc.less_equal,
    exp.NullSafeNEQ: _distinct,
    exp.NullSafeEQ: lambda left, right: pc.invert(_distinct(left, right)),
}
BINARY: Mapping[type[exp.Expr], BinaryFunction] = {
    **COMPARISONS,
    exp.And: pc.and_kleene,
    exp.Or: pc.or_kleene,
    exp.Add: pc.add_checked,
    exp.Sub: pc.subtract_checked,
    exp.Mul: pc.multiply_checked,
    exp.Div: pc.divide_checked,
    exp.DPipe: _joined,
}
UNARY: Mapping[type[exp.Expr], UnaryFunction] = {
    exp.Paren: lambda values: values,
    exp.Not: pc.invert,
    exp.Neg: pc.negate_checked,
    exp.Lower: pc.utf8_lower,
    exp.Upper: pc.utf8_upper,
    exp.Length: pc.utf8_length,
    exp.Abs: pc.abs_checked,
}
PATTERNS: Mapping[type[exp.Expr], Callable[[pa.Array, str], pa.Array]] = {
    exp.Like: pc.match_like,
    exp.ILike: lambda values, pattern: pc.match_like(values, pattern, ignore_case=True),
    exp.RegexpLike: pc.match_substring_regex,
    exp.RegexpILike: lambda values, pattern: pc.match_substring_regex(values, pattern, ignore_case=True),
    exp.StartsWith: pc.starts_with,
}
_TYPES: Mapping[str, pa.DataType] = {
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMPTZ": pa.timestamp("us", tz="UTC"),
}
_OTHERS = (exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.Is, exp.In, exp.Between, exp.Coalesce)
_ALLOWED = (*BINARY, *UNARY, *PATTERNS, *_OTHERS, exp.Cast, exp.DataType, exp.DataTypeParam)


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


@dataclass(frozen=True, slots=True)
class _TypedNode:
    node: exp.Expr
    type: pa.DataType
    evaluate: Evaluate

    @property
    def is_text_literal(self) -> bool:
        return isinstance(self.node, exp.Literal) and bool(self.node.is_string)


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
                offset, name = self._written(node)
                raise self._error(offset, f"{name} is not permitted", hint=f"permitted are {PERMITTED}")

    def bind(self, shape: TableShape) -> BoundExpression:
        """Check columns and types for a version of a table. Raise `BadExpression`."""
        term = _Binding(self._error, shape).term(self._tree)
        return BoundExpression(term.type, term.evaluate, f"{self._owner} on {shape.table}")

    def bind_condition(self, shape: TableShape) -> BoundExpression:
        """As `bind`, and check that the result is boolean."""
        bound = self.bind(shape)
        if not pa.types.is_boolean(bound.type):
            raise self._error(_offset(self._tree), f"a condition is needed, this is {bound.type}")
        return bound

    def _written(self, node: exp.Expr) -> tuple[int, str]:
        """Return where a node is in the text, and its name as it is written there, or else as SQL spells it."""
        place = _word_place(node, self.text)
        if place is None:
            return _offset(node), _called(node)
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


class _Binding:
    """Makes terms of the nodes of an expression, for a table."""

    def __init__(self, error: Callable[[int, str], BadExpression], shape: TableShape) -> None:
        self._error = error
        self._shape = shape
        self._no_rows = _no_rows(shape.schema)
        self._others: Mapping[type[exp.Expr], Callable[[exp.Expr], _TypedNode]] = {
            exp.Column: self._column,
            exp.Literal: self._literal,
            exp.Boolean: self._boolean,
            exp.Null: self._null,
            exp.Is: self._is,
            exp.In: self._in,
            exp.Between: self._between,
            exp.Coalesce: self._coalesce,
            exp.Cast: self._cast,
        }

    def term(self, node: exp.Expr) -> _TypedNode:
        """Return the term of a node. Raise `BadExpression`."""
        kind = type(node)
        if kind in BINARY:
            binary = BINARY[kind]
            sides = self._alike([self.term(node.this), self.term(node.expression)])
            return self._applied(node, lambda given: binary(*given), sides)
        if kind in UNARY:
            return self._unary(node, UNARY[kind])
        if kind in PATTERNS:
            return self._matched(node, PATTERNS[kind])
        if kind not in self._others:
            raise self._error(_offset(node), f"{_called(node)} is not permitted here")
        return self._others[kind](node)

    def _unary(self, node: exp.Expr, compute: UnaryFunction) -> _TypedNode:
        return self._applied(node, lambda given: compute(given[0]), [self.term(node.this)])

    def _literal(self, node: exp.Expr) -> _TypedNode:
        text: str = node.this
        return self._constant(node, text if node.args["is_string"] else _number(text))

    def _boolean(self, node: exp.Expr) -> _TypedNode:
        return self._constant(node, bool(node.this))

    def _null(self, node: exp.Expr) -> _TypedNode:
        return self._constant(node, None)

    def _between(self, node: exp.Expr) -> _TypedNode:
        found = self._alike([self.term(node.args[name]) for name in ("this", "low", "high")])
        return self._applied(node, _is_between, found)

    def _coalesce(self, node: exp.Expr) -> _TypedNode:
        found = self._alike([self.term(node.this), *(self.term(each) for each in node.expressions)])
        return self._applied(node, lambda given: pc.coalesce(*given), found)

    def _applied(self, node: exp.Expr, compute: Compute, terms: Sequence[_TypedNode]) -> _TypedNode:
        evaluations = [term.evaluate for term in terms]

        def evaluate(rows: pa.RecordBatch) -> pa.Array:
            return compute([each(rows) for each in evaluations])

        try:
            found = evaluate(self._no_rows)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, TypeError):
            types = " and ".join(str(term.type) for term in terms)
            raise self._error(_offset(node), f"{_called(node)} does not apply to {types}") from None
        return _TypedNode(node, found.type, evaluate)

    def _alike(self, terms: list[_TypedNode]) -> list[_TypedNode]:
        """Give literals the type of the values that they stand beside, as PostgreSQL does."""
        types = [term.type for term in terms if not isinstance(term.node, exp.Literal | exp.Null)]
        return [self._typed(term, types[0]) for term in terms] if types else terms

    def _typed(self, term: _TypedNode, wanted: pa.DataType) -> _TypedNode:
        is_fraction = pa.types.is_decimal(term.type) and pa.types.is_floating(wanted)
        is_text = term.is_text_literal and not pa.types.is_string(wanted)
        is_null = isinstance(term.node, exp.Null)
        if not (is_null or (isinstance(term.node, exp.Literal) and (is_fraction or is_text))):
            return term
        try:
            scalar = _as_type(term.evaluate(self._no_rows), wanted)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise self._error(_offset(term.node), f"'{term.node.this}' is not a valid {wanted}") from None
        return _TypedNode(term.node, wanted, lambda _rows: scalar)

    def _constant(self, node: exp.Expr, value: object) -> _TypedNode:
        scalar = pa.scalar(value)
        return _TypedNode(node, scalar.type, lambda _rows: scalar)

    def _column(self, node: exp.Expr) -> _TypedNode:
        side = _folded(node.args["table"]) if node.args.get("table") else None
        name = _folded(node.this)
        if node.args.get("db") or (side is not None and side not in (*SIDES, "change")):
            raise self._error(_offset(node), f"{node.sql()}: write before.x, after.x, change.x or x")
        if side == "change":
            return self._of_change(node, name)
        if name not in self._shape.names:
            known = ", ".join(self._shape.names)
            raise self._error(_offset(node), f"{self._shape.table} has no column {name}; its columns are {known}")
        at = self._shape.names.index(name)
        kind = self._shape.columns.field(at).type
        if side is None:
            return _TypedNode(node, kind, lambda rows: _row_value(rows, at))
        column = SIDES[side]
        return _TypedNode(node, kind, lambda rows: pc.struct_field(rows.column(column), [at]))

    def _of_change(self, node: exp.Expr, name: str) -> _TypedNode:
        if name not in CHANGE_COLUMNS:
            raise self._error(_offset(node), f"change has {', '.join(CHANGE_COLUMNS)}, not {name}")
        column = CHANGE_COLUMNS[name]
        return _TypedNode(node, self._no_rows.column(column).type, lambda rows: rows.column(column))

    def _matched(self, node: exp.Expr, compute: Callable[[pa.Array, str], pa.Array]) -> _TypedNode:
        pattern = node.expression
        if not (isinstance(pattern, exp.Literal) and pattern.is_string):
            raise self._error(_offset(node), f"the pattern of {_called(node)} must be a text in quotes")
        text: str = pattern.this
        try:
            compute(pa.array([""]), text)  # without a row, a pattern is not compiled
        except pa.ArrowInvalid:
            raise self._error(_offset(pattern), f"'{text}' is not a valid pattern of {_called(node)}") from None
        return self._unary(node, lambda values: compute(values, text))

    def _is(self, node: exp.Expr) -> _TypedNode:
        operand = node.expression
        if isinstance(operand, exp.Null):
            compute: UnaryFunction = pc.is_null
        elif isinstance(operand, exp.Boolean):
            compute = _is_true if operand.this else _is_false
        else:
            raise self._error(_offset(node), "IS needs NULL, TRUE or FALSE")
        if node.args.get("negate"):
            return self._unary(node, lambda values: pc.invert(compute(values)))
        return self._unary(node, compute)

    def _in(self, node: exp.Expr) -> _TypedNode:
        if not node.expressions:
            raise self._error(_offset(node), "IN needs a list of values")
        found = self._alike([self.term(node.this), *(self.term(each) for each in node.expressions)])
        return self._applied(node, _is_among, found)

    def _cast(self, node: exp.Expr) -> _TypedNode:
        described = node.args["to"]
        assert isinstance(described, exp.DataType), described
        wanted = self._type_of(described, node)
        return self._unary(node, lambda values: values.cast(wanted))

    def _type_of(self, described: exp.DataType, node: exp.Expr) -> pa.DataType:
        name: str = described.this.value
        if name == "DECIMAL":
            digits = [int(parameter.this.this) for parameter in described.expressions]
            return pa.decimal128(*(digits or (38, 9)))
        if name not in _TYPES:
            raise self._error(_offset(node), f"a cast to {described.sql()} is not permitted")
        return _TYPES[name]


def _as_type(literal: pa.Scalar, wanted: pa.DataType) -> pa.Scalar:
    if not (pa.types.is_timestamp(wanted) and wanted.tz is not None):
        return literal.cast(wanted)
    try:
        return literal.cast(wanted)
    except pa.ArrowInvalid:  # without a time zone: UTC, as in the batches
        return literal.cast(pa.timestamp("us")).cast(wanted)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _row_value(rows: pa.RecordBatch, at: int) -> pa.Array:
    before, after = (pc.struct_field(rows.column(side), [at]) for side in (BEFORE, AFTER))
    return pc.if_else(pc.equal(rows.column("_op"), Op.DELETE.value), before, after)


def _is_between(given: Sequence[pa.Array]) -> pa.Array:
    values, low, high = given
    return pc.and_kleene(pc.greater_equal(values, low), pc.less_equal(values, high))


def _is_among(given: Sequence[pa.Array]) -> pa.Array:
    values, *listed = given
    return reduce(pc.or_kleene, (pc.equal(values, each) for each in listed))


def _is_true(values: pa.Array) -> pa.Array:
    return pc.coalesce(values, pa.scalar(False))


def _is_false(values: pa.Array) -> pa.Array:
    return _is_true(pc.invert(values))


def _number(text: str) -> int | Decimal:
    return int(text) if text.isdigit() else Decimal(text)


def _folded(identifier: exp.Expr) -> str:
    name: str = identifier.name
    return name if identifier.args.get("quoted") else name.lower()


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


def _called(node: exp.Expr) -> str:
    """Return the name of a node for messages, as SQL spells it."""
    if isinstance(node, exp.Anonymous):
        return str(node.sql(dialect="postgres"))
    return _name_of(type(node))


def _name_of(kind: type[exp.Expr]) -> str:
    if issubclass(kind, exp.Binary):
        made = kind(this=exp.column("a"), expression=exp.column("b"))
        for written in (made.sql(dialect="postgres"), made.sql()):
            if written.startswith("a ") and written.endswith(" b"):
                return str(written[2:-2])
    if issubclass(kind, exp.Func):
        return str(kind.sql_name())
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__).upper()


def _word_place(node: exp.Expr, text: str) -> tuple[int, int] | None:
    """Return where the name of a function, or another word, is in the text; None: the node is not written by one."""
    if isinstance(node, exp.Binary):
        return None
    if "start" in node.meta:
        return int(node.meta["start"]), int(node.meta["end"]) + 1
    # sqlglot keeps no place of functions with a syntax of their own: it is before the arguments.
    names = node.sql_names() if isinstance(node, exp.Func) else [_name_of(type(node))]
    tokens = [token for token in sqlglot.tokenize(text, dialect="postgres") if token.text.upper() in names]
    first = _offset(node)
    found = [token for token in tokens if token.start <= first] or tokens
    return (found[-1].start, found[-1].end + 1) if found else None


def _offset(node: exp.Expr) -> int:
    """Return where a node begins: only some nodes have a place of their own."""
    places = [int(each.meta["start"]) for each in node.walk() if "start" in each.meta]
    return min(places, default=0)


_WORDS = (exp.Is, exp.In, exp.Between, exp.Coalesce, exp.Cast)
PERMITTED = ", ".join(
    map(_name_of, (*BINARY, *(kind for kind in UNARY if kind not in (exp.Paren, exp.Neg)), *PATTERNS, *_WORDS))
)
