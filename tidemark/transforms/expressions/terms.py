"""An expression for the columns of one table: the type of each node, checked on no rows, and its evaluation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from tidemark.model.change import AFTER, BEFORE, Op
from tidemark.transforms.expressions.casts import cast, cast_to_numeric, with_common_type
from tidemark.transforms.expressions.comparisons import COMPARISONS, comparison, is_exact_in
from tidemark.transforms.expressions.operators import (
    ARITHMETIC,
    LOGIC,
    OF_ASCII,
    OF_NUMBERS,
    OF_TEXTS,
    PATTERNS,
    arithmetic,
    checked_pattern,
    is_false,
    is_true,
    joined,
)
from tidemark.transforms.expressions.sql_types import (
    ComparedAs,
    SqlType,
    UnfitType,
    common_type,
    hint_of,
    literal_of,
    plain,
    type_of_column,
)
from tidemark.transforms.expressions.written_names import called, offset
from tidemark.transforms.transform import BadTransform, TableShape

CHANGE_COLUMNS = {"op": "_op", "commit_time": "_commit_time", "xid": "_xid", "origin": "_origin"}
SIDES = {"before": BEFORE, "after": AFTER}
Evaluate = Callable[[pa.RecordBatch], pa.Array]  # or a scalar, for all rows
Compute = Callable[[Sequence[pa.Array]], pa.Array]
MakeError = Callable[[int, str, str | None], BadTransform]
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
_TEXT, _TRUTH = plain(pa.string()), plain(pa.bool_())
_REFUSALS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, TypeError)


@dataclass(frozen=True, slots=True)
class TypedTerm:
    """A node of an expression for a table."""

    node: exp.Expr
    type: SqlType
    evaluate: Evaluate

    @property
    def text(self) -> str | None:
        """The text of a literal in quotes, whose type is that of the value beside it."""
        return str(self.node.this) if isinstance(self.node, exp.Literal) and self.node.is_string else None

    @property
    def is_flexible(self) -> bool:
        """Return whether the value beside it decides its type."""
        return self.text is not None or isinstance(self.node, exp.Null)


class Binding:
    """Makes terms of the nodes of an expression, for a table."""

    def __init__(self, error: MakeError, shape: TableShape) -> None:
        self._error = error
        self._shape = shape
        self._no_rows = pa.RecordBatch.from_arrays(
            [pa.nulls(0, field.type) for field in shape.schema], schema=shape.schema
        )
        self._columns = {column.number: column for column in shape.relation.columns}
        self._kinds: Mapping[type[exp.Expr], Callable[[exp.Expr], TypedTerm]] = {
            **dict.fromkeys(COMPARISONS, self._comparison),
            **dict.fromkeys(ARITHMETIC, self._arithmetic),
            **dict.fromkeys(LOGIC, self._logic),
            **dict.fromkeys(OF_NUMBERS, self._of_number),
            **dict.fromkeys(OF_TEXTS, self._of_text),
            **dict.fromkeys(PATTERNS, self._matched),
            exp.DPipe: self._joined,
            exp.Paren: lambda node: replace(self.term(node.this), node=node),
            exp.Collate: self._collated,
            exp.Column: self._column,
            exp.Literal: self._literal,
            exp.Boolean: lambda node: self._constant(node, pa.scalar(bool(node.this))),
            exp.Null: lambda node: self._constant(node, pa.scalar(None, pa.string())),
            exp.Is: self._is,
            exp.In: self._in,
            exp.Between: self._between,
            exp.Coalesce: self._coalesce,
            exp.Cast: self._cast,
        }

    def term(self, node: exp.Expr) -> TypedTerm:
        """Return the term of a node. Raise `BadExpression`."""
        if type(node) not in self._kinds:
            raise self._error(offset(node), f"{called(node)} is not permitted here", None)
        return self._kinds[type(node)](node)

    def _literal(self, node: exp.Expr) -> TypedTerm:
        text: str = node.this
        if node.args["is_string"]:
            return self._constant(node, pa.scalar(text))
        try:
            return self._constant(node, _number(text))
        except (pa.ArrowInvalid, InvalidOperation, OverflowError, ValueError):
            raise self._error(offset(node), f"the number {text} has too many digits", None) from None

    def _comparison(self, node: exp.Expr) -> TypedTerm:
        left, right = self._pair(node)
        return self._compared(node, type(node), left, right)

    def _compared(self, node: exp.Expr, kind: type[exp.Expr], left: TypedTerm, right: TypedTerm) -> TypedTerm:
        left, right = self._fitted(left, right), self._fitted(right, left)
        try:
            test = comparison(kind, left.type, right.type)
        except UnfitType as error:
            raise self._unfit(node, [left, right], error) from None
        return self._applied(node, lambda given: test(given[0], given[1]), [left, right])

    def _between(self, node: exp.Expr) -> TypedTerm:
        found, low, high = (self.term(node.args[name]) for name in ("this", "low", "high"))
        sides = [self._compared(node, exp.GTE, found, low), self._compared(node, exp.LTE, found, high)]
        return self._decided(node, exp.And, sides)

    def _in(self, node: exp.Expr) -> TypedTerm:
        if not node.expressions:
            raise self._error(offset(node), "IN needs a list of values", None)
        found, listed = self.term(node.this), [self.term(each) for each in node.expressions]
        if found.text is not None and len({each.is_flexible for each in listed}) > 1:
            # In PostgreSQL, its type depends on which of the values are constants.
            raise self._error(offset(node.this), f"the type of '{found.text}' is not known", "cast it")
        for each in listed:
            # In PostgreSQL, the type of such a number depends on how many are listed.
            if isinstance(each.node, exp.Literal) and not is_exact_in(found.type, each.evaluate(self._no_rows)):
                raise self._error(offset(each.node), f"{each.node.this} is no exact {found.type}", "write it in quotes")
        tests = [self._compared(node, exp.EQ, found, each) for each in listed]
        return self._applied(node, lambda given: reduce(pc.or_kleene, given), tests)

    def _arithmetic(self, node: exp.Expr) -> TypedTerm:
        left, right = self._pair(node)
        left, right = self._fitted(left, right), self._fitted(right, left)
        try:
            compute = arithmetic(type(node), left.type, right.type)
        except UnfitType as error:
            raise self._unfit(node, [left, right], error) from None
        return self._applied(node, lambda given: compute(given[0], given[1]), [left, right])

    def _logic(self, node: exp.Expr) -> TypedTerm:
        operands = [node.this] if isinstance(node, exp.Not) else [node.this, node.expression]
        terms = [self._truth(self.term(each)) for each in operands]
        if any(not pa.types.is_boolean(term.type.arrow) for term in terms):
            raise self._unfit(node, terms, UnfitType(""))
        if isinstance(node, exp.Not):
            return self._applied(node, LOGIC[exp.Not], terms)
        return self._decided(node, type(node), terms)

    def _decided(self, node: exp.Expr, kind: type[exp.Expr], terms: Sequence[TypedTerm]) -> TypedTerm:
        """Return AND or OR of two conditions; the second one may fail on rows that the first one decides."""
        first, second = terms
        is_decided = is_false if kind is exp.And else is_true

        def evaluate(rows: pa.RecordBatch) -> pa.Array:
            found = first.evaluate(rows)
            return LOGIC[kind]([found, _values_where(second.evaluate, rows, pc.invert(is_decided(found)))])

        return self._checked(node, evaluate, terms)

    def _truth(self, term: TypedTerm) -> TypedTerm:
        return self._as_type(term, _TRUTH) if term.is_flexible else term

    def _of_number(self, node: exp.Expr) -> TypedTerm:
        term = self.term(node.this)
        if not term.type.is_number:
            raise self._unfit(node, [term], UnfitType("", hint_of(term.type)))
        return self._applied(node, lambda given: OF_NUMBERS[type(node)](given[0]), [term])

    def _of_text(self, node: exp.Expr) -> TypedTerm:
        term = self._text(node, node.this)
        compute = (OF_ASCII if term.type.is_ordered and type(node) in OF_ASCII else OF_TEXTS)[type(node)]
        made = self._applied(node, lambda given: compute(given[0]), [term])
        is_ordered = term.type.is_ordered and made.type.kind is ComparedAs.TEXT
        return replace(made, type=replace(made.type, is_ordered=is_ordered))

    def _joined(self, node: exp.Expr) -> TypedTerm:
        return self._applied(node, joined, [self._text(node, node.this), self._text(node, node.expression)])

    def _text(self, node: exp.Expr, operand: exp.Expr) -> TypedTerm:
        """Return the term of an operand of a function of texts, which another type is not cast to silently."""
        term = self.term(operand)
        if term.type.kind is not ComparedAs.TEXT:
            raise self._unfit(node, [term], UnfitType("", hint_of(term.type)))
        return term

    def _matched(self, node: exp.Expr) -> TypedTerm:
        pattern = node.expression
        if not (isinstance(pattern, exp.Literal) and pattern.is_string):
            raise self._error(offset(node), f"the pattern of {called(node)} must be a text in quotes", None)
        text: str = pattern.this
        term = self._text(node, node.this)
        try:
            compute = checked_pattern(type(node), text, of_ascii=term.type.is_ordered)
        except UnfitType as error:
            message = f"'{text}' is not a valid pattern of {called(node)}"
            raise self._error(offset(pattern), f"{message}{error}", error.hint) from None
        if node.args.get("negate"):  # of NOT LIKE and NOT ILIKE, and of no other
            return self._applied(node, lambda given: pc.invert(compute(given[0])), [term])
        return self._applied(node, lambda given: compute(given[0]), [term])

    def _collated(self, node: exp.Expr) -> TypedTerm:
        term = self._text(node, node.this)
        if isinstance(node.expression, exp.Cast):  # sqlglot casts the name: PostgreSQL casts the text
            raise self._error(offset(node), "a cast after COLLATE needs parentheses", '(name COLLATE "C")::text')
        if node.expression.name not in ("C", "POSIX"):
            raise self._error(offset(node), 'of collations, only "C" is permitted', None)
        return replace(term, node=node, type=replace(term.type, is_ordered=True))

    def _is(self, node: exp.Expr) -> TypedTerm:
        operand, term = node.expression, self.term(node.this)
        if isinstance(operand, exp.Null):
            test: Callable[[pa.Array], pa.Array] = pc.is_null
        elif isinstance(operand, exp.Boolean):
            test, term = is_true if operand.this else is_false, self._truth(term)
            if not pa.types.is_boolean(term.type.arrow):
                raise self._unfit(node, [term], UnfitType("it is no condition"))
        else:
            raise self._error(offset(node), "IS needs NULL, TRUE or FALSE", None)
        if node.args.get("negate"):
            return self._applied(node, lambda given: pc.invert(test(given[0])), [term])
        return self._applied(node, lambda given: test(given[0]), [term])

    def _coalesce(self, node: exp.Expr) -> TypedTerm:
        terms = [self.term(node.this), *(self.term(each) for each in node.expressions)]
        types = [term.type for term in terms if not term.is_flexible] or [_TEXT]
        try:
            common = common_type(types)
            fitted = [self._as_type(term, common) if term.is_flexible else term for term in terms]
            converts = [with_common_type(term.type, common) for term in fitted]
        except UnfitType as error:
            raise self._unfit(node, terms, error) from None

        def evaluate(rows: pa.RecordBatch) -> pa.Array:
            found = converts[0](fitted[0].evaluate(rows))
            for convert, term in zip(converts[1:], fitted[1:], strict=True):
                found = pc.coalesce(found, convert(_values_where(term.evaluate, rows, pc.is_null(found))))
            return found

        return replace(self._checked(node, evaluate, fitted), type=common)

    def _cast(self, node: exp.Expr) -> TypedTerm:
        described, term = node.args["to"], self.term(node.this)
        assert isinstance(described, exp.DataType), described
        wanted = self._type_of(described, node)
        if term.is_flexible and wanted is not None and not pa.types.is_decimal(wanted):
            return replace(self._as_type(term, plain(wanted)), node=node)
        try:
            if wanted is None:
                made, convert = cast_to_numeric(term.type)
            else:
                made, convert = plain(wanted), cast(term.type, wanted, described.sql(dialect="postgres"))
        except UnfitType as error:
            raise self._error(offset(node), str(error), error.hint) from None
        return replace(self._applied(node, lambda given: convert(given[0]), [term]), type=made)

    def _type_of(self, described: exp.DataType, node: exp.Expr) -> pa.DataType | None:
        """Return the type of a cast; None for `numeric` without digits."""
        name: str = described.this.value
        shown = described.sql(dialect="postgres")
        if name == "DECIMAL":
            try:
                return (
                    pa.decimal128(*(int(each.name) for each in described.expressions))
                    if described.expressions
                    else None
                )
            except ValueError:
                raise self._error(offset(node), f"a cast to {shown} is not permitted", "up to 38 digits") from None
        if name not in _TYPES or described.expressions:
            raise self._error(offset(node), f"a cast to {shown} is not permitted", None)
        return _TYPES[name]

    def _column(self, node: exp.Expr) -> TypedTerm:
        side = folded(node.args["table"]) if node.args.get("table") else None
        name = folded(node.this)
        if node.args.get("db") or (side is not None and side not in (*SIDES, "change")):
            raise self._error(offset(node), f"{node.sql()}: write before.x, after.x, change.x or x", None)
        if side == "change":
            return self._of_change(node, name)
        if name not in self._shape.names:
            known = ", ".join(self._shape.names)
            raise self._error(offset(node), f"{self._shape.table} has no column {name}; its columns are {known}", None)
        at = self._shape.names.index(name)
        kind = self._type_of_column(name, self._shape.columns.field(at).type)
        if side is None:
            return TypedTerm(node, kind, lambda rows: _row_value(rows, at))
        column = SIDES[side]
        return TypedTerm(node, kind, lambda rows: pc.struct_field(rows.column(column), [at]))

    def _type_of_column(self, name: str, arrow: pa.DataType) -> SqlType:
        number = self._shape.numbers.get(name)
        source = None if number is None or number in self._shape.hidden else self._columns.get(number)
        return type_of_column(source.type if source is not None else None, arrow)

    def _of_change(self, node: exp.Expr, name: str) -> TypedTerm:
        if name not in CHANGE_COLUMNS:
            raise self._error(offset(node), f"change has {', '.join(CHANGE_COLUMNS)}, not {name}", None)
        column = CHANGE_COLUMNS[name]
        return TypedTerm(node, plain(self._no_rows.column(column).type), lambda rows: rows.column(column))

    def _pair(self, node: exp.Expr) -> tuple[TypedTerm, TypedTerm]:
        return self.term(node.this), self.term(node.expression)

    def _fitted(self, term: TypedTerm, beside: TypedTerm) -> TypedTerm:
        """Give a literal in quotes, or NULL, the type of the value beside it."""
        return self._as_type(term, beside.type) if term.is_flexible and not beside.is_flexible else term

    def _as_type(self, term: TypedTerm, wanted: SqlType) -> TypedTerm:
        try:
            scalar = pa.scalar(None, wanted.arrow) if term.text is None else literal_of(term.text, wanted)
        except UnfitType as error:
            raise self._error(offset(term.node), str(error), error.hint) from None
        return TypedTerm(term.node, wanted, lambda _rows: scalar)

    def _constant(self, node: exp.Expr, scalar: pa.Scalar) -> TypedTerm:
        return TypedTerm(node, plain(scalar.type), lambda _rows: scalar)

    def _applied(self, node: exp.Expr, compute: Compute, terms: Sequence[TypedTerm]) -> TypedTerm:
        evaluations = [term.evaluate for term in terms]

        return self._checked(node, lambda rows: compute([each(rows) for each in evaluations]), terms)

    def _checked(self, node: exp.Expr, evaluate: Evaluate, terms: Sequence[TypedTerm]) -> TypedTerm:
        """Return the term of an evaluation, tried on no rows."""
        try:
            found = evaluate(self._no_rows)
        except _REFUSALS:
            raise self._unfit(node, terms, UnfitType("")) from None
        return TypedTerm(node, plain(found.type), evaluate)

    def _unfit(self, node: exp.Expr, terms: Sequence[TypedTerm], error: UnfitType) -> BadTransform:
        types = " and ".join(str(term.type) for term in terms)
        reason = f": {error}" if str(error) else ""
        return self._error(offset(node), f"{called(node)} does not apply to {types}{reason}", error.hint)


def _values_where(evaluate: Evaluate, rows: pa.RecordBatch, needed: pa.Array) -> pa.Array:
    """Return values of rows; if one cannot be computed, only those that are `needed`, as PostgreSQL does."""
    try:
        return evaluate(rows)
    except pa.ArrowInvalid:
        if isinstance(needed, pa.Scalar):
            needed = pa.repeat(needed, rows.num_rows)
        if pc.all(needed).as_py():
            raise
    values = evaluate(rows.filter(needed))
    if isinstance(values, pa.Scalar):
        return values
    return pc.replace_with_mask(pa.nulls(rows.num_rows, values.type), needed, values)


def folded(identifier: exp.Expr) -> str:
    """Return the name that an identifier means: only letters of ASCII are folded, as in a database with UTF-8."""
    name: str = identifier.name
    return name if identifier.args.get("quoted") else "".join(each.lower() if each.isascii() else each for each in name)


def _number(text: str) -> pa.Scalar:
    number = int(text) if text.isdigit() else Decimal(text)
    return pa.scalar(number if isinstance(number, Decimal) or number.bit_length() < 64 else Decimal(number))


def _row_value(rows: pa.RecordBatch, at: int) -> pa.Array:
    before, after = (pc.struct_field(rows.column(side), [at]) for side in (BEFORE, AFTER))
    return pc.if_else(pc.equal(rows.column("_op"), Op.DELETE.value), before, after)
