"""Values in the type that a query has for their column: the same values, or an error, whatever Arrow would do."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from tidemark.pipeline.source.rows.exact_values import UnfitValues, exactly

DAY, NOON = datetime(2024, 1, 1), datetime(2024, 1, 1, 12)  # noqa: DTZ001 - of timestamp without time zone
SECONDS, POINTS = pa.timestamp("us"), pa.timestamp("us", "UTC")
LOST = [
    (5_000_000_000, pa.int64(), pa.int32()),
    (4_294_967_295, pa.int64(), pa.int32()),
    (1e300, pa.float64(), pa.float32()),
    (0.1, pa.float64(), pa.float32()),
    (2**60 + 1, pa.int64(), pa.float64()),
    (Decimal("0.5"), pa.decimal128(10, 2), pa.int32()),
    (NOON, SECONDS, pa.date32()),
    (NOON, SECONDS, POINTS),
    (NOON.replace(tzinfo=UTC), POINTS, SECONDS),
    (5, pa.int32(), pa.bool_()),
    ("007", pa.string(), pa.int32()),
    ([1e300], pa.list_(pa.float64()), pa.list_(pa.float32())),
]
KEPT = [
    (5, 5, pa.int64(), pa.int32()),
    (5, 5, pa.int16(), pa.int64()),
    (0.5, 0.5, pa.float64(), pa.float32()),
    (math.inf, math.inf, pa.float64(), pa.float32()),
    (DAY, date(2024, 1, 1), SECONDS, pa.date32()),
    (Decimal("0.10"), 0.1, pa.decimal128(10, 2), pa.float64()),
    (Decimal("0.10"), "0.10", pa.decimal128(10, 2), pa.string()),
    ([None, 2.5], [None, 2.5], pa.list_(pa.float64()), pa.list_(pa.float32())),
]


@pytest.mark.parametrize(("value", "of", "to"), LOST)
def test_a_value_that_is_another_one_in_the_columns_type_is_an_error(
    value: object, of: pa.DataType, to: pa.DataType
) -> None:
    with pytest.raises(UnfitValues, match=r"column total: .* does not become ") as unfit:
        exactly(pa.array([None, value], of), pa.field("total", to))
    assert "schemaEvolution=restart" in unfit.value.hint


@pytest.mark.parametrize(("value", "kept", "of", "to"), KEPT)
def test_a_value_that_is_the_same_in_the_columns_type_is_kept(
    value: object, kept: object, of: pa.DataType, to: pa.DataType
) -> None:
    found = exactly(pa.array([None, value], of), pa.field("total", to))
    assert (found.type, found.to_pylist()) == (to, [None, kept])


def test_nan_and_the_sign_of_zero_are_kept() -> None:
    found = exactly(pa.array([math.nan, -0.0]), pa.field("total", pa.float32())).to_pylist()
    assert math.isnan(found[0])
    assert math.copysign(1, found[1]) == -1
