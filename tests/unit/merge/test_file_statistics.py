"""The statistics of data files: bounds are correct or absent, and other readers parse them."""

import json
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from tidemark.pipeline.lake.files import file_statistics
from tidemark.pipeline.lake.files.file_statistics import COLUMNS_MAX, TEXT_MAX, statistics


@pytest.fixture(scope="module", autouse=True, params=[file_statistics.LISTED_MAX, 0], ids=["listed", "by Arrow"])
def listed_max(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run each test with the way of few rows, and with that of more rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_statistics, "LISTED_MAX", request.param)
        yield


DAY_US = 86_400_000_000


def bounds(values: pa.Array) -> tuple[object, object] | None:
    found = json.loads(statistics(pa.table({"c": values}), ()), parse_float=Decimal)
    assert found["numRecords"] == len(values)
    assert found["nullCount"] == {"c": values.null_count}
    assert found["minValues"].keys() == found["maxValues"].keys()
    return (found["minValues"]["c"], found["maxValues"]["c"]) if found["minValues"] else None


@pytest.mark.parametrize(
    ("values", "least", "most"),
    [
        (pa.array([3, None, -(1 << 63)]), -(1 << 63), 3),
        (pa.array([True, False]), False, True),
        (pa.array([0.5, None, -1.5]), -1.5, 0.5),
        (pa.array([-0.5, -1.5]), -1.5, -0.5),
        (pa.array([0.5, 1.5]), 0.5, 1.5),
        (pa.array(["b", "", None, "é"]), "", "é"),
        (pa.array([Decimal("12345678901234567890.123"), Decimal("-0.001")]), "-0.001", "12345678901234567890.123"),
        (pa.array([-719_162, 2_932_896], pa.int32()).cast(pa.date32()), "0001-01-01", "9999-12-31"),
        (pa.array([0, 1], pa.int64()).cast(pa.timestamp("us")), "1970-01-01T00:00:00.000", "1970-01-01T00:00:00.001"),
        (
            pa.array([-1, DAY_US], pa.int64()).cast(pa.timestamp("us", "UTC")),
            "1969-12-31T23:59:59.999Z",
            "1970-01-02T00:00:00.000Z",
        ),
    ],
    ids=str,
)
def test_bounds_include_every_value(values: pa.Array, least: object, most: object) -> None:
    found = bounds(values)
    assert found is not None
    assert [str(bound) for bound in found] == [str(least), str(most)]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1.0, math.nan]),
        pa.array([1.0, math.inf]),
        pa.array([None], pa.int64()),
        pa.array([], pa.int64()),
        pa.array([b"a"]),
        pa.array([0, 2_932_897], pa.int32()).cast(pa.date32()),
        pa.array([-719_163, 0], pa.int32()).cast(pa.date32()),
        pa.array([0, (1 << 63) - 1], pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array([-(1 << 63), 0], pa.int64()).cast(pa.timestamp("us")),
        pa.array(["a", "\U0010ffff" * (TEXT_MAX + 1)]),
    ],
    ids=str,
)
def test_a_column_whose_bounds_a_reader_could_misread_has_none(values: pa.Array) -> None:
    assert bounds(values) is None


def test_zero_and_minus_zero_are_between_the_bounds_of_each_other() -> None:
    assert bounds(pa.array([0.0])) == (Decimal("-0.0"), Decimal("0.0"))
    assert str(bounds(pa.array([0.0]))[0]) == "-0.0"  # type: ignore[index]


@pytest.mark.parametrize("last", ["a", "\ud7ff", "\uf000", "\uffff", "\U0010ffff", "z"])
def test_long_text_is_truncated_to_bounds_that_include_it(last: str) -> None:
    texts = ["m" * (TEXT_MAX - 1) + last + "tail", "n" * (TEXT_MAX - 1) + last + "tail"]
    found = bounds(pa.array(texts))
    assert found is not None
    least, most = map(str, found)
    assert least.encode() <= texts[0].encode()
    assert most.encode() >= texts[1].encode()
    assert max(len(least), len(most)) <= TEXT_MAX


def test_text_of_the_greatest_length_is_its_own_bound_and_longer_text_has_the_next_text_as_bound() -> None:
    assert bounds(pa.array(["m" * TEXT_MAX])) == ("m" * TEXT_MAX, "m" * TEXT_MAX)
    assert bounds(pa.array(["m" * (TEXT_MAX + 1)])) == ("m" * TEXT_MAX, "m" * (TEXT_MAX - 1) + "n")


def test_nested_columns_have_no_statistics() -> None:
    found = json.loads(statistics(pa.table({"l": pa.array([[1], None]), "c": [1, 2]}), ()))
    assert (found["nullCount"], found["minValues"], found["maxValues"]) == ({"c": 0}, {"c": 1}, {"c": 2})


def test_columns_beyond_the_first_have_statistics_if_they_are_in_the_key() -> None:
    rows = pa.table({f"c{number}": [number] for number in range(COLUMNS_MAX + 2)})
    found = json.loads(statistics(rows, ["c33"]))
    assert found["minValues"].keys() == {*(f"c{number}" for number in range(COLUMNS_MAX)), "c33"}


def test_delta_rs_reads_the_bounds_as_they_were_written(tmp_path: Path) -> None:
    rows = pa.table(
        {
            'a "name".é': pa.array([1, 2]),
            "d": pa.array([Decimal("12345678901234567890.123")] * 2),
            "t": pa.array([5, 7_777_777], pa.int64()).cast(pa.timestamp("us", "UTC")),
            "n": pa.array([5, 7_777_777], pa.int64()).cast(pa.timestamp("us")),
            "l": pa.array([[1], None]),
            "f": pa.array([0.5, 1e300]),
        }
    )
    table = DeltaTable.create(str(tmp_path), rows.schema)
    action = AddAction("part-1.parquet", 1, {}, 0, True, statistics(rows, ()))
    table.create_write_transaction([action], mode="append", schema=table.schema())
    table = DeltaTable(str(tmp_path))
    table.create_checkpoint()
    (added,) = pa.table(DeltaTable(str(tmp_path)).get_add_actions()).to_pylist()
    assert added["num_records"] == 2
    assert added["min"]['a "name".é'] == 1
    assert added["max"]["d"] == Decimal("12345678901234567890.123")
    assert added["max"]["t"].isoformat() == "1970-01-01T00:00:07.778000+00:00"
    assert added["min"]["n"].isoformat() == "1970-01-01T00:00:00"
    assert added["max"]["f"] == 1e300
