"""Comparisons as PostgreSQL defines them, of arrays whose types are known: NaN, padded text, enums, mixed numbers."""

from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from tidemark.transforms.expressions.casts import Convert, as_number, each_pair, without_padding
from tidemark.transforms.expressions.sql_types import (
    UTC,
    ComparedAs,
    SqlType,
    UnfitType,
    decimal_of,
    hint_of,
    is_alike,
    is_number,
)

Test = Callable[[pa.Array, pa.Array], pa.Array]


class ValueOrder(NamedTuple):
    """Equality of two values, and whether the first one is less; None: they have no order here."""

    equal: Test
    less: Test | None = None


def _distinct(equal: Test, left: pa.Array, right: pa.Array) -> pa.Array:
    both_missing = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.if_else(both_missing, pa.scalar(False), pc.coalesce(pc.invert(equal(left, right)), pa.scalar(True)))


_EQUALITIES: Mapping[type[exp.Expr], Callable[[Test, pa.Array, pa.Array], pa.Array]] = {
    exp.EQ: lambda equal, left, right: equal(left, right),
    exp.NEQ: lambda equal, left, right: pc.invert(equal(left, right)),
    exp.NullSafeNEQ: _distinct,
    exp.NullSafeEQ: lambda equal, left, right: pc.invert(_distinct(equal, left, right)),
}
_ORDERINGS: Mapping[type[exp.Expr], Callable[[Test, pa.Array, pa.Array], pa.Array]] = {
    exp.GT: lambda less, left, right: less(right, left),
    exp.GTE: lambda less, left, right: pc.invert(less(left, right)),
    exp.LT: lambda less, left, right: less(left, right),
    exp.LTE: lambda less, left, right: pc.invert(less(right, left)),
}
COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeNEQ, exp.NullSafeEQ)


def comparison(kind: type[exp.Expr], left: SqlType, right: SqlType) -> Test:
    """Return a comparison of values of two types. Raise `UnfitType`."""
    # NB: how a value is converted depends on its side, so `a > b` needs the order of b and a.
    order = _order_of(right, left) if kind in (exp.GT, exp.LTE) else _order_of(left, right)
    if kind in _EQUALITIES:
        return partial(_EQUALITIES[kind], order.equal)
    if order.less is None:
        raise UnfitType(f"the order of {left} is not known", hint_of(left))
    return partial(_ORDERINGS[kind], order.less)


def _order_of(left: SqlType, right: SqlType) -> ValueOrder:
    if ComparedAs.NUMERIC in (left.kind, right.kind):
        return _order_of_numerics(left, right)
    if left.kind is not right.kind or (left.kind is not ComparedAs.PLAIN and not is_alike(left, right)):
        other = right if left.kind in (ComparedAs.PLAIN, ComparedAs.TEXT) else left
        raise UnfitType(
            "the types differ", None if other.kind in (ComparedAs.PLAIN, ComparedAs.TEXT) else hint_of(other)
        )
    match left.kind:
        case ComparedAs.PLAIN:
            are_alike = left.is_oid == right.is_oid
            return _plain_order(left.arrow, right.arrow) if are_alike else _order_of_oid(left, right)
        case ComparedAs.TEXT:
            return ValueOrder(pc.equal, pc.less if left.is_ordered or right.is_ordered else None)
        case ComparedAs.PADDED:
            return ValueOrder(_converted(pc.equal, without_padding, without_padding))
        case ComparedAs.ENUM:
            position = partial(pc.index_in, value_set=pa.array(left.labels, left.arrow))
            return ValueOrder(pc.equal, _converted(pc.less, position, position))
        case ComparedAs.OPAQUE:
            raise UnfitType(f"equal values of {left} can have different texts", hint_of(left))
    return ValueOrder(pc.equal, None if left.kind is ComparedAs.ONE_TEXT else pc.less)


def _order_of_oid(left: SqlType, right: SqlType) -> ValueOrder:
    for found in (left, right):
        if not pa.types.is_integer(found.arrow):
            raise UnfitType("the types differ", "write an integer")
    # One of the sides is an OID already, and never negative.
    return ValueOrder(_converted(pc.equal, _unsigned, _unsigned), _converted(pc.less, _unsigned, _unsigned))


def _unsigned(values: pa.Array) -> pa.Array:
    wide = values.cast(pa.int64())
    return pc.if_else(pc.less(wide, 0), pc.add(wide, 1 << 32), wide)


def _plain_order(left: pa.DataType, right: pa.DataType) -> ValueOrder:
    if is_number(left) != is_number(right):
        raise UnfitType("the types differ")
    if pa.types.is_floating(left) or pa.types.is_floating(right):
        # A `real` is compared with any other number as double precision.
        target = left if left == right else pa.float64()
        convert = partial(as_number, wanted=target)
        return ValueOrder(_converted(_equal_floats, convert, convert), _converted(_less_floats, convert, convert))
    if pa.types.is_decimal(left) or pa.types.is_decimal(right):
        convert = partial(as_number, wanted=decimal_of([left, right]))
        return ValueOrder(_converted(pc.equal, convert, convert), _converted(pc.less, convert, convert))
    to_left, to_right = _instants(left, right), _instants(right, left)
    return ValueOrder(_converted(pc.equal, to_left, to_right), _converted(pc.less, to_left, to_right))


def _instants(found: pa.DataType, other: pa.DataType) -> Convert:
    """Return how a date or a timestamp becomes what it is compared with: without a time zone it is in UTC."""
    if pa.types.is_date(found) and pa.types.is_timestamp(other):
        return lambda values: values.cast(other)
    is_naive = pa.types.is_timestamp(found) and found.tz is None
    if is_naive and pa.types.is_timestamp(other) and other.tz is not None:
        return lambda values: values.cast(UTC)
    return lambda values: values


def _order_of_numerics(left: SqlType, right: SqlType) -> ValueOrder:
    for found in (left, right):
        if not (found.is_number or found.kind is ComparedAs.NUMERIC):
            raise UnfitType("the types differ", hint_of(left if left.kind is ComparedAs.NUMERIC else right))
    if pa.types.is_floating(left.arrow) or pa.types.is_floating(right.arrow):
        return _plain_order(pa.float64(), pa.float64())
    return ValueOrder(
        partial(each_pair, lambda one, other: _compared(one, other) == 0),
        partial(each_pair, lambda one, other: _compared(one, other) < 0),
    )


def _compared(left: object, right: object) -> int:
    """Return -1, 0 or 1: NaN is equal to itself, and greater than all numbers."""
    one, other = Decimal(str(left)), Decimal(str(right))
    if one.is_nan() or other.is_nan():
        return int(one.is_nan()) - int(other.is_nan())
    return (one > other) - (one < other)


def _converted(test: Test, to_left: Convert, to_right: Convert) -> Test:
    def converted(left: pa.Array, right: pa.Array) -> pa.Array:
        return test(to_left(left), to_right(right))

    return converted


def _equal_floats(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.or_kleene(pc.equal(left, right), pc.and_kleene(pc.is_nan(left), pc.is_nan(right)))


def _less_floats(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.or_kleene(pc.less(left, right), pc.and_kleene(pc.invert(pc.is_nan(left)), pc.is_nan(right)))


def is_exact_in(found: SqlType, literal: pa.Scalar) -> bool:
    """Return whether a number is the same as a `real`; True if no real is compared, or the literal is a text."""
    if found.arrow != pa.float32() or pa.types.is_string(literal.type):
        return True
    return Decimal(as_number(literal, pa.float32()).as_py()) == Decimal(literal.as_py())
