"""Which files can contain a key: with statistics that are missing, rounded or truncated."""

import math
from decimal import Decimal

import pyarrow as pa
import pytest

from tidemark.pipeline.merge.key_ranges import KeyRanges, SoughtKeys
from tidemark.pipeline.merge.keys import comparable_keys

TIME = pa.timestamp("us", "UTC")
DECIMAL = pa.decimal128(38, 0)


def ranges(kind: pa.DataType, *files: tuple[object, object, int | None]) -> KeyRanges:
    """Return the ranges of files with these minima, maxima and numbers of NULLs."""
    least, most, nulls = zip(*files, strict=True)
    added = {"min": pa.array(least, kind), "max": pa.array(most, kind), "null_count": pa.array(nulls, pa.int64())}
    table = pa.table({name: pa.StructArray.from_arrays([values], ["k"]) for name, values in added.items()})
    return KeyRanges(table, [pa.field("k", kind)])


def candidates(found: KeyRanges, kind: pa.DataType, *keys: object) -> dict[int, list[object]]:
    """Return the files that can contain keys, and these keys."""
    table = comparable_keys(pa.table({"k": pa.array(keys, kind)}), ["k"])
    return {
        file: sorted((keys[index] for index in indexes.tolist()), key=repr)
        for file, indexes in found.inside(SoughtKeys(table)).items()
    }


def test_a_file_is_a_candidate_for_the_keys_between_its_bounds() -> None:
    found = ranges(pa.int64(), (0, 9, 0), (20, 29, 0), (10, 19, 0), (5, 25, 0))
    assert candidates(found, pa.int64(), 9, 30, -1, 15) == {0: [9], 2: [15], 3: [15, 9]}
    assert candidates(found, pa.int64()) == {}


def test_a_file_without_bounds_is_a_candidate_for_every_key() -> None:
    found = ranges(pa.int64(), (0, 9, 0), (None, None, None), (None, 5, 0))
    assert candidates(found, pa.int64(), 3, 50) == {0: [3], 1: [3, 50], 2: [3, 50]}
    no_statistics = KeyRanges(pa.table({"path": ["a", "b"]}), [pa.field("k", pa.int64())])
    assert candidates(no_statistics, pa.int64(), 3) == {0: [3], 1: [3]}


def test_binary_keys_have_no_bounds() -> None:
    assert candidates(ranges(pa.binary(), (b"a", b"b", 0)), pa.binary(), b"x") == {0: [b"x"]}


def test_a_truncated_maximum_includes_the_texts_that_begin_with_it() -> None:
    found = ranges(pa.string(), ("a", "m" * 32, 0), ("mn", "z", 0))
    assert candidates(found, pa.string(), "m" * 40) == {0: ["m" * 40]}


def test_a_text_that_a_reader_may_have_changed_is_not_a_bound() -> None:
    found = ranges(pa.string(), ("a", "\U00010000", 0), ("\U00010000", "\U00010001", 0), ("a", "\uffff", 0))
    assert candidates(found, pa.string(), "\U00020000") == {0: ["\U00020000"], 1: ["\U00020000"]}


def test_a_rounded_time_includes_the_whole_millisecond() -> None:
    found = ranges(TIME, (0, 1000, 0), (5000, 6000, 0))
    assert candidates(found, TIME, 1999, 7001) == {0: [1999]}


def test_infinite_times_are_not_bounds() -> None:
    found = ranges(TIME, (0, (1 << 63) - 1, 0))
    assert candidates(found, TIME, -5) == {0: [-5]}


def test_a_decimal_that_was_rounded_to_a_floating_point_number_is_included() -> None:
    exact = Decimal(12345678901234567890)
    rounded = Decimal(12345678901234568000)  # 17 digits, as a floating-point number is printed
    found = ranges(DECIMAL, (rounded, rounded, 0), (exact + 1, exact + 2, 0), (exact, exact, 0))
    assert candidates(found, DECIMAL, exact) == {0: [exact], 2: [exact]}


def test_a_decimal_beyond_64_bits_that_was_printed_as_the_last_integer_is_included() -> None:
    least, most = Decimal(1 - 10**38), Decimal(10**38 - 1)
    first, last = Decimal(-(1 << 63)), Decimal((1 << 63) - 1)
    found = ranges(DECIMAL, (last, last, 0), (first, first, 0), (Decimal(1), Decimal(2), 0))
    assert candidates(found, DECIMAL, least, most) == {0: [most], 1: [least]}


@pytest.mark.parametrize("exact", [Decimal(10**38 - 1), Decimal(1 - 10**38)], ids=repr)
def test_a_bound_of_38_digits_is_not_rounded(exact: Decimal) -> None:
    assert candidates(ranges(DECIMAL, (exact, exact, 0)), DECIMAL, exact) == {0: [exact]}


def test_a_decimal_that_was_rounded_to_few_digits_is_included() -> None:
    kind = pa.decimal128(38, 20)
    exact = Decimal("1.00000000000000000001")
    assert candidates(ranges(kind, (Decimal(1), Decimal(1), 0)), kind, exact) == {0: [exact]}


def test_a_decimal_that_every_floating_point_number_distinguishes_is_exact() -> None:
    kind = pa.decimal128(15, 5)
    bound, next_to_it = Decimal("1234567890.12345"), Decimal("1234567890.12346")
    assert candidates(ranges(kind, (bound, bound, 0)), kind, bound, next_to_it) == {0: [bound]}


def test_null_and_nan_are_sought_where_statistics_do_not_exclude_them() -> None:
    nulls = ranges(DECIMAL, (Decimal(1), Decimal(2), 0), (Decimal(1), Decimal(2), 1), (None, None, None))
    assert candidates(nulls, DECIMAL, None).keys() == {1, 2}
    floats = ranges(pa.float64(), (1.0, 2.0, 0), (5.0, 6.0, 0))
    assert candidates(floats, pa.float64(), math.nan, 1.5).keys() == {0, 1}
    assert candidates(floats, pa.float64(), 1.5).keys() == {0}


@pytest.mark.parametrize("zero", [0.0, -0.0], ids=repr)
def test_zero_and_minus_zero_are_one_key(zero: float) -> None:
    found = ranges(pa.float64(), (-1.0, zero, 0), (zero, 1.0, 0))
    assert candidates(found, pa.float64(), 0.0).keys() == candidates(found, pa.float64(), -0.0).keys() == {0, 1}


def composite(least: dict[str, list[object]], most: dict[str, list[object]]) -> KeyRanges:
    """Return the ranges of files with several key columns, which have no NULLs."""
    nulls: dict[str, list[object]] = {name: [0] * len(values) for name, values in least.items()}
    added = {
        name: pa.StructArray.from_arrays([pa.array(column) for column in values.values()], list(values))
        for name, values in (("min", least), ("max", most), ("null_count", nulls))
    }
    kinds = added["min"].type
    return KeyRanges(pa.table(added), [kinds.field(name) for name in least])


@pytest.mark.parametrize("tenant", [1, "tenant"], ids=repr)
def test_further_key_columns_narrow_the_candidates_and_order_the_files(tenant: object) -> None:
    found = composite({"a": [tenant] * 3, "b": [0, 10, 20]}, {"a": [tenant] * 3, "b": [9, 19, 29]})
    sought = SoughtKeys(pa.table({"a": [tenant, tenant], "b": [15, 35]}))
    assert {file: indexes.tolist() for file, indexes in found.inside(sought).items()} == {1: [0]}
    assert found.begins.tolist() == sorted(found.begins)
    assert all(end < begin for end, begin in zip(found.ends, found.begins[1:], strict=False)), "they do not overlap"
    assert found.separable.all()


def test_files_whose_known_bounds_are_one_value_cannot_be_separated() -> None:
    same = "m" * 300
    assert ranges(pa.string(), (same, same, 0), (same, same, 0), ("a", "b", 0)).separable.tolist() == [
        False,
        False,
        True,
    ]
    found = composite({"a": [1, 1], "b": [b"a", b"b"]}, {"a": [1, 1], "b": [b"a", b"b"]})
    assert not found.separable.any()
