"""Operators and functions of an expression: which there are, and what each computes of arrays of Arrow."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from tidemark.transforms.expressions.casts import as_number
from tidemark.transforms.expressions.sql_types import SqlType, UnfitType, hint_of

UnaryFunction = Callable[[pa.Array], pa.Array]
BinaryFunction = Callable[[pa.Array, pa.Array], pa.Array]

ARITHMETIC: Mapping[type[exp.Expr], BinaryFunction] = {
    exp.Add: pc.add_checked,
    exp.Sub: pc.subtract_checked,
    exp.Mul: pc.multiply_checked,
    exp.Div: pc.divide_checked,
}
LOGIC: Mapping[type[exp.Expr], Callable[[Sequence[pa.Array]], pa.Array]] = {
    exp.And: lambda given: pc.and_kleene(*given),
    exp.Or: lambda given: pc.or_kleene(*given),
    exp.Not: lambda given: pc.invert(*given),
}
OF_NUMBERS: Mapping[type[exp.Expr], UnaryFunction] = {exp.Neg: pc.negate_checked, exp.Abs: pc.abs_checked}
OF_ASCII: Mapping[type[exp.Expr], UnaryFunction] = {exp.Lower: pc.ascii_lower, exp.Upper: pc.ascii_upper}  # of "C"
OF_TEXTS: Mapping[type[exp.Expr], UnaryFunction] = {
    exp.Lower: pc.utf8_lower,
    exp.Upper: pc.utf8_upper,
    exp.Length: pc.utf8_length,
}
# In a regular expression, `.` matches a newline too, as with PostgreSQL.
PATTERNS: Mapping[type[exp.Expr], Callable[[pa.Array, str], pa.Array]] = {
    exp.Like: lambda values, pattern: _like(values, pattern, ignore_case=False),
    exp.ILike: lambda values, pattern: _like(values, pattern, ignore_case=True),
    exp.RegexpLike: lambda values, pattern: pc.match_substring_regex(values, f"(?s){pattern}"),
    exp.RegexpILike: lambda values, pattern: pc.match_substring_regex(values, f"(?s){pattern}", ignore_case=True),
    exp.StartsWith: pc.starts_with,
}
_ONE_OF_LIKE = re.compile(r"\\.|.", re.DOTALL)  # a character, or one with its escape
_LIKES = (exp.Like, exp.ILike)
_REGULAR = (exp.RegexpLike, exp.RegexpILike)
# What RE2, which Arrow uses, and PostgreSQL read differently: classes by the collation, boundaries, embedded options.
_READ_DIFFERENTLY = re.compile(r"\\[^dDntrfv\W]|\\_|\(\?(?!:)|\[[:.=](?!digit:)")
_HINT_OF_PATTERNS = r"write [A-Za-z0-9_] for \w, and for other classes their characters; use ~* for (?i)"


def arithmetic(kind: type[exp.Expr], left: SqlType, right: SqlType) -> BinaryFunction:
    """Return an operator for numbers of two types. Raise `UnfitType`."""
    for found in (left, right):
        if not found.is_number:
            raise UnfitType("", hint_of(found))
    compute = ARITHMETIC[kind]
    if pa.types.is_floating(left.arrow) or pa.types.is_floating(right.arrow):
        convert = partial(as_number, wanted=left.arrow if left.arrow == right.arrow else pa.float64())
        return lambda one, other: compute(convert(one), convert(other))
    if kind is exp.Div and (pa.types.is_decimal(left.arrow) or pa.types.is_decimal(right.arrow)):
        raise UnfitType("the digits of a quotient differ from PostgreSQL's", "cast one to double precision")
    return compute


def checked_pattern(kind: type[exp.Expr], pattern: str, *, of_ascii: bool) -> UnaryFunction:
    """Return the test of texts for a pattern; `of_ascii`: by the collation "C". Raise `UnfitType`."""
    if of_ascii and kind is exp.RegexpILike:
        raise UnfitType(' here: its cases in the collation "C" are not known', "use ~ with both cases in brackets")
    if kind in _LIKES and len(pattern) - len(pattern.rstrip("\\")) & 1:
        raise UnfitType(": it ends with the escape character")
    without_escapes = pattern.replace("\\\\", "")
    if kind in _REGULAR and (found := _READ_DIFFERENTLY.search(without_escapes)):
        raise UnfitType(f" here: PostgreSQL reads {found[0]} differently", _HINT_OF_PATTERNS)

    def compute(values: pa.Array) -> pa.Array:
        if of_ascii and kind is exp.ILike:
            return _like(pc.ascii_lower(values), pc.ascii_lower(pattern).as_py(), ignore_case=False)
        return PATTERNS[kind](values, pattern)

    try:
        compute(pa.array([""]))  # without a row, a pattern is not compiled
    except pa.ArrowInvalid:
        raise UnfitType("") from None
    return compute


def _like(values: pa.Array, pattern: str, *, ignore_case: bool) -> pa.Array:
    if "\\" not in pattern:
        return pc.match_like(values, pattern, ignore_case=ignore_case)
    # NB: Arrow takes some escapes for themselves.
    regular = _ONE_OF_LIKE.sub(_as_regular, pattern)
    return pc.match_substring_regex(values, f"(?s)^{regular}$", ignore_case=ignore_case)


def _as_regular(found: re.Match[str]) -> str:
    return {"%": ".*", "_": "."}.get(found[0]) or re.escape(found[0][-1])


def joined(given: Sequence[pa.Array]) -> pa.Array:
    """Return texts one after the other, NULL if one is."""
    return pc.binary_join_element_wise(*given, "")


def is_true(values: pa.Array) -> pa.Array:
    """Return whether each boolean is true, and not NULL."""
    return pc.coalesce(values, pa.scalar(False))


def is_false(values: pa.Array) -> pa.Array:
    """Return whether each boolean is false, and not NULL."""
    return is_true(pc.invert(values))
