"""Values of one type as those of another: casts of SQL, with PostgreSQL's rounding and text. NULL remains NULL."""

import struct
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.decode.types.families.float_text import double_text, single_text
from tidemark.transforms.expressions.sql_types import (
    NAIVE,
    SPACES,
    UTC,
    ComparedAs,
    SqlType,
    UnfitType,
    decimal_of,
    hint_of,
    is_number,
    is_text,
    plain,
    plain_literal,
    truth_of,
)

Convert = Callable[[pa.Array], pa.Array]
DIGITS_MAX = 1000  # of intermediate decimals: more than a type of Arrow has
DIGITS_OF_FLOATS = {32: 6, 64: 15}  # that a cast of a float to numeric keeps (FLT_DIG, DBL_DIG)
# The time that may follow a date; a cast to `date` drops it, and its zone.
TIME_OF_DAY = r"^(\d{4}-\d\d-\d\d)[ T]([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d+)?)? ?(Z|[+-]\d\d(:?[0-5]\d)?)?$"
PLAIN_SCALE_MAX = 6  # Arrow prints some decimals with a greater scale with an exponent


def each_value(function: Callable[[object], object], kind: pa.DataType, values: pa.Array) -> pa.Array:
    """Call a function with each value. A value that it does not accept is an `ArrowInvalid` without the value."""
    try:
        if isinstance(values, pa.Scalar):
            return pa.scalar(function(values.as_py()) if values.is_valid else None, kind)
        return pa.array([None if value is None else function(value) for value in values.to_pylist()], kind)
    except (ValueError, OverflowError, InvalidOperation):
        raise pa.ArrowInvalid("a value does not fit") from None


def each_pair(function: Callable[[object, object], bool], left: pa.Array, right: pa.Array) -> pa.Array:
    """Call a test with the values of each row; one side may be a scalar, for all rows."""
    scalars = [side for side in (left, right) if isinstance(side, pa.Scalar)]
    if len(scalars) == 2:
        pair = (left.as_py(), right.as_py())
        return pa.scalar(None if None in pair else function(*pair), pa.bool_())
    if scalars and not scalars[0].is_valid:
        return pa.nulls(len(right if left is scalars[0] else left), pa.bool_())
    count = len(right if isinstance(left, pa.Scalar) else left)
    first, second = (
        [side.as_py()] * count if isinstance(side, pa.Scalar) else side.to_pylist() for side in (left, right)
    )
    found = [None if None in pair else function(*pair) for pair in zip(first, second, strict=True)]
    return pa.array(found, pa.bool_())


def without_padding(values: pa.Array) -> pa.Array:
    """Return texts without trailing spaces."""
    return pc.utf8_rtrim(values, characters=" ")


def as_number(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return numbers as a float or a wider decimal, rounded as PostgreSQL does."""
    if values.type == wanted:
        return values
    if pa.types.is_floating(wanted) and pa.types.is_decimal(values.type):
        values = values.cast(pa.string())  # NB: Arrow's own cast of a decimal is not rounded correctly
    return pc.cast(values, wanted, safe=pa.types.is_decimal(wanted))


def cast(source: SqlType, wanted: pa.DataType, described: str) -> Convert:
    """Return the cast of values to a type; `described`: the type in SQL. Raise `UnfitType`."""
    if is_text(wanted):
        return _cast_to_text(source, described)
    if source.kind is ComparedAs.TEXT or (source.kind is ComparedAs.NUMERIC and is_number(wanted)):
        return _cast_text(wanted, is_rounded=source.kind is ComparedAs.NUMERIC)
    if source.kind is ComparedAs.OPAQUE and pa.types.is_integer(source.arrow) and is_number(wanted):
        return partial(pc.cast, target_type=wanted)
    if source.kind is not ComparedAs.PLAIN:
        raise _no_cast(source, described)
    if is_number(source.arrow) or pa.types.is_boolean(source.arrow):
        return _cast_plain(source, wanted, described)
    return _cast_times(source, wanted, described)


def cast_to_numeric(source: SqlType) -> tuple[SqlType, Convert]:
    """Return what a cast to `numeric` without digits makes of a type, which keeps all of them. Raise `UnfitType`."""
    found = source.arrow
    if source.kind is ComparedAs.NUMERIC or pa.types.is_decimal(found):
        return plain(found) if is_number(found) else source, lambda values: values
    if source.is_number and pa.types.is_integer(found):
        made = decimal_of([found])
        return plain(made), partial(as_number, wanted=made)
    made = pa.string()
    if source.is_number:
        digits = _digits_of(found)
        convert = partial(each_value, lambda value: _numeric_text(f"{value:.{digits}g}"), made)
    elif source.kind is ComparedAs.TEXT:
        convert = partial(each_value, lambda text: _numeric_text(str(text)), made)
    else:
        raise _no_cast(source, "numeric")
    return SqlType(made, ComparedAs.NUMERIC, "numeric"), convert


def _numeric_text(text: str) -> str:
    found = Decimal(text.strip(SPACES))
    return f"{abs(found) if found.is_zero() else found:f}" if found.is_finite() else str(found)


def _digits_of(found: pa.DataType) -> int:
    return DIGITS_OF_FLOATS[64 if found == pa.float64() else 32]


def _no_cast(source: SqlType, described: str) -> UnfitType:
    return UnfitType(f"a cast of {source} to {described} is not permitted", hint_of(source))


def _cast_plain(source: SqlType, wanted: pa.DataType, described: str) -> Convert:
    found = source.arrow
    if pa.types.is_boolean(found) or pa.types.is_boolean(wanted):
        if found != wanted and not (pa.types.is_integer(found) or pa.types.is_integer(wanted)):
            raise _no_cast(source, described)
        return partial(pc.cast, target_type=wanted)
    if not is_number(wanted):
        raise _no_cast(source, described)
    if pa.types.is_floating(wanted):
        return partial(as_number, wanted=wanted)
    if pa.types.is_integer(wanted):
        return _to_integer(source, wanted)
    if pa.types.is_floating(found):
        digits = _digits_of(found)
        return partial(each_value, lambda value: _quantized(Decimal(f"{value:.{digits}g}"), wanted), wanted)
    return partial(each_value, lambda value: _quantized(Decimal(str(value)), wanted), wanted)


def _to_integer(source: SqlType, wanted: pa.DataType) -> Convert:
    found = source.arrow
    if pa.types.is_floating(found):  # to the nearest, of two to the even one; a `numeric` away from zero
        mode = "half_towards_infinity" if source.name == "numeric" else "half_to_even"
        return lambda values: pc.round(values, round_mode=mode).cast(wanted)
    if pa.types.is_decimal(found):
        return partial(each_value, lambda value: int(_rounded(Decimal(str(value)), 0)), wanted)
    return partial(pc.cast, target_type=wanted)


def _rounded(value: Decimal, scale: int) -> Decimal:
    with localcontext(prec=DIGITS_MAX):
        return value.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)


def _quantized(value: Decimal, wanted: pa.DataType) -> Decimal:
    return _rounded(value, wanted.scale)


def _cast_text(wanted: pa.DataType, *, is_rounded: bool) -> Convert:
    """Return the cast of texts; `is_rounded`: they are numbers, and an integer can be made of one with a fraction."""
    if pa.types.is_decimal(wanted):
        return partial(each_value, lambda text: _quantized(Decimal(str(text).strip(SPACES)), wanted), wanted)
    if is_rounded and pa.types.is_integer(wanted):
        return partial(each_value, lambda text: int(_rounded(Decimal(str(text)), 0)), wanted)
    if pa.types.is_boolean(wanted):
        return partial(each_value, lambda text: truth_of(str(text)), wanted)
    # A timestamp with time zone: a text without one is in UTC.
    if wanted == UTC:
        return partial(each_value, lambda text: plain_literal(str(text), wanted).as_py(), wanted)
    if pa.types.is_date(wanted):
        return _texts_as_dates
    return lambda values: pc.utf8_trim(values, characters=SPACES).cast(wanted)


def _texts_as_dates(values: pa.Array) -> pa.Array:
    trimmed = pc.utf8_trim(values, characters=SPACES)
    return pc.replace_substring_regex(trimmed, pattern=TIME_OF_DAY, replacement=r"\1").cast(pa.date32())


def _cast_times(source: SqlType, wanted: pa.DataType, described: str) -> Convert:
    found = source.arrow
    if found == wanted:
        return lambda values: values
    is_time = pa.types.is_timestamp(found) or pa.types.is_date(found)
    if not is_time or not (pa.types.is_timestamp(wanted) or pa.types.is_date(wanted)):
        raise _no_cast(source, described)
    if pa.types.is_timestamp(found) and found.tz is not None:
        return lambda values: values.cast(UTC).cast(NAIVE).cast(wanted)
    return lambda values: values.cast(NAIVE).cast(wanted)


def _cast_to_text(source: SqlType, described: str) -> Convert:
    if not source.has_text:
        raise _no_cast(source, described)
    found = source.arrow
    if is_text(found):
        if source.kind is ComparedAs.PADDED:
            return without_padding
        return _with_mask if source.has_mask else lambda values: values
    if pa.types.is_floating(found) and found.bit_width in DIGITS_OF_FLOATS:
        form, shown = ("<f", single_text) if found.bit_width == 32 else ("<d", double_text)
        return partial(each_value, lambda value: shown(struct.pack(form, value)), pa.string())
    if pa.types.is_decimal(found) and found.scale > PLAIN_SCALE_MAX:
        return partial(each_value, lambda value: f"{value:f}", pa.string())
    if pa.types.is_timestamp(found):
        return partial(_timestamps_as_text, zone="" if found.tz is None else "+00")
    is_printed = is_number(found) or pa.types.is_boolean(found) or pa.types.is_date(found)
    if not is_printed:
        raise _no_cast(source, described)
    return lambda values: values.cast(pa.string())


def _with_mask(values: pa.Array) -> pa.Array:
    bits = pc.if_else(pc.match_substring(values, ":"), pa.scalar("/128"), pa.scalar("/32"))
    added = pc.if_else(pc.match_substring(values, "/"), pa.scalar(""), bits)
    return pc.binary_join_element_wise(values, added, "")


def _timestamps_as_text(values: pa.Array, zone: str) -> pa.Array:
    naive = values.cast(pa.timestamp(values.type.unit, "UTC")).cast(NAIVE) if zone else values.cast(NAIVE)
    printed = pc.replace_substring_regex(naive.cast(pa.string()), pattern=r"\.?0+$", replacement="")
    return pc.binary_join_element_wise(printed, zone, "")


def with_common_type(found: SqlType, common: SqlType) -> Convert:
    """Return how values become those of the common type of COALESCE."""
    if common.kind is ComparedAs.NUMERIC and found.kind is not ComparedAs.NUMERIC:
        return _cast_to_text(found, "numeric")
    if common.is_number:
        return partial(as_number, wanted=common.arrow)
    return lambda values: values
