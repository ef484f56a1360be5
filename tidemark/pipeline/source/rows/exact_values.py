"""Values of a column whose type has changed, in the type that a query has for it: exactly, or not at all."""

import pyarrow as pa

from tidemark.model.errors import StateError
from tidemark.pipeline.lake.layout import UnfitRows, convert


class UnfitValues(StateError):
    """Values that the type of a query's column cannot represent."""

    hint = "schemaEvolution=restart gives a query the new type; columns=raw has every value as it was written"


def exactly(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return the values of `column` in the type of `field`; raise `UnfitValues` if one is not the same there.

    A value is the same if it converts back to itself: Arrow's safe conversions drop the time of a day, and make
    infinity of a large double. Local times and points in time are never the same.
    """
    if column.type == field.type:
        return column
    problem = f"column {field.name}: {column.type} does not become {field.type}"
    if pa.types.is_timestamp(column.type) and pa.types.is_timestamp(field.type):
        raise UnfitValues(problem)
    try:
        values = convert(column, field)
        is_same = _are_equal(column, convert(values, pa.field(field.name, column.type)))
    except UnfitRows as error:
        raise UnfitValues(problem) from error
    if not is_same:
        raise UnfitValues(f"{problem} without a loss")
    return values


def _are_equal(left: pa.Array, right: pa.Array) -> bool:
    if pa.types.is_nested(left.type) or pa.types.is_floating(left.type):  # NaN is NaN, and -0.0 is not 0.0
        return repr(left.to_pylist()) == repr(right.to_pylist())
    return bool(left.equals(right))
