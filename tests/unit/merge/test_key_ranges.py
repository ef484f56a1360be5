"""Which files can contain a key: with statistics that are missing, rounded or truncated."""

import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from tidemark.pipeline.merge.key_ranges import KeyRanges, SoughtKeys
from tidemark.pipeline.merge.keys import comparable_keys

TIME = pa.timestamp("us", "UTC")
DECIMAL = pa.decimal128(38, 0)
Bounds = dict[str, list[object]]


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


def test_statistics_of_another_column_or_of_another_form_are_no_bounds() -> None:
    others = {name: pa.StructArray.from_arrays([pa.array([7])], ["other"]) for name in ("min", "max", "null_count")}
    for added in (others, dict.fromkeys(others, pa.nulls(1))):
        found = KeyRanges(pa.table(added), [pa.field("k", pa.int64())])
        assert candidates(found, pa.int64(), 3, 50) == {0: [3, 50]}


@pytest.mark.parametrize(
    ("kind", "files", "key"),
    [
        (pa.date32(), ((0, 9, 0), (10, 19, 0)), 9),
        (pa.bool_(), ((False, False, 0), (True, True, 0)), False),
        (pa.int16(), ((0, 9, 0), (10, 19, 0)), 9),
        (pa.float32(), ((0.5, 1.5, 0), (2.5, 3.5, 0)), 1.5),
    ],
    ids=str,
)
def test_keys_of_every_type_with_statistics_are_between_bounds(
    kind: pa.DataType, files: tuple[tuple[object, object, int], ...], key: object
) -> None:
    assert candidates(ranges(kind, *files), kind, key) == {0: [key]}


def test_binary_keys_have_no_bounds() -> None:
    assert candidates(ranges(pa.binary(), (b"a", b"b", 0)), pa.binary(), b"x") == {0: [b"x"]}


def test_a_truncated_maximum_includes_the_texts_that_begin_with_it() -> None:
    found = ranges(pa.string(), ("a", "m" * 32, 0), ("mn", "z", 0))
    assert candidates(found, pa.string(), "m" * 40) == {0: ["m" * 40]}


def test_a_text_that_a_reader_may_have_changed_is_not_a_bound() -> None:
    found = ranges(pa.string(), ("a", "\U00010000", 0), ("\U00010000", "\U00010001", 0), ("a", "\uffff", 0))
    assert candidates(found, pa.string(), "\U00020000") == {0: ["\U00020000"], 1: ["\U00020000"]}
    only_least = ranges(pa.string(), ("b\U00010000", "c", 0), ("b", "c", 0))
    assert candidates(only_least, pa.string(), "a") == {0: ["a"]}


def test_a_rounded_time_includes_the_whole_millisecond() -> None:
    found = ranges(TIME, (0, 1000, 0), (5000, 6000, 0))
    assert candidates(found, TIME, 1999, 7001) == {0: [1999]}


@pytest.mark.parametrize("most", [1 << 61, (1 << 63) - 1])
def test_infinite_times_are_not_bounds(most: int) -> None:
    found = ranges(TIME, (0, most, 0))
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


def test_a_decimal_of_19_digits_may_have_been_rounded() -> None:
    exact, rounded = Decimal(1234567890123456789), Decimal(int(float(1234567890123456789)))
    assert len(str(rounded)) == 19
    assert candidates(ranges(DECIMAL, (rounded, rounded, 0)), DECIMAL, exact) == {0: [exact]}


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
    found = ranges(kind, (bound, bound, 0))
    assert candidates(found, kind, bound, next_to_it) == {0: [bound]}
    assert (found.least.tolist(), found.most.tolist()) == ([bound], [bound])


def test_null_and_nan_are_sought_where_statistics_do_not_exclude_them() -> None:
    nulls = ranges(DECIMAL, (Decimal(1), Decimal(2), 0), (Decimal(1), Decimal(2), 1), (None, None, None))
    assert candidates(nulls, DECIMAL, None).keys() == {1, 2}
    assert candidates(nulls, DECIMAL, None, Decimal(1)) == {
        0: [Decimal(1)],
        1: [Decimal(1), None],
        2: [Decimal(1), None],
    }
    floats = ranges(pa.float64(), (1.0, 2.0, 0), (5.0, 6.0, 0))
    assert candidates(floats, pa.float64(), math.nan, 1.5).keys() == {0, 1}
    assert candidates(floats, pa.float64(), 1.5).keys() == {0}


def test_the_ranks_of_keys_are_those_of_the_last_files_that_begin_before_them() -> None:
    found = ranges(pa.int64(), (10, 19, 0), (0, 9, 0), (None, None, None))
    keys = SoughtKeys(comparable_keys(pa.table({"k": pa.array([15, -1, 3, None], pa.int64())}), ["k"]))
    assert found.ranks_before(keys, np.array([0, 2])) == (0, 1)
    assert found.ranks_before(keys, np.array([0, 1])) == (-1, 1)
    assert found.ranks_before(keys, np.array([0, 3])) == (-1, -1), "NULL has no place in the order"
    binary = SoughtKeys(comparable_keys(pa.table({"k": [b"x"]}), ["k"]))
    assert ranges(pa.binary(), (b"a", b"b", 0)).ranks_before(binary, np.array([0])) == (-1, -1)


@pytest.mark.parametrize("zero", [0.0, -0.0], ids=repr)
def test_zero_and_minus_zero_are_one_key(zero: float) -> None:
    found = ranges(pa.float64(), (-1.0, zero, 0), (zero, 1.0, 0))
    assert candidates(found, pa.float64(), 0.0).keys() == candidates(found, pa.float64(), -0.0).keys() == {0, 1}


def composite(least: Bounds, most: Bounds) -> KeyRanges:
    """Return the ranges of files with several key columns, which have no NULLs."""
    nulls: Bounds = {name: [0] * len(values) for name, values in least.items()}
    added = {
        name: pa.StructArray.from_arrays(
            [pa.array(column, pa.int64() if None in column else None) for column in values.values()], list(values)
        )
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


@pytest.mark.parametrize(("least", "most"), [(10, 19), (None, None)])
def test_a_further_key_column_excludes_only_values_that_are_not_between_known_bounds(
    least: int | None, most: int | None
) -> None:
    found = composite({"a": [1], "b": [least]}, {"a": [1], "b": [most]})
    sought = SoughtKeys(pa.table({"a": [1] * 4, "b": [9, 10, 19, 20]}))
    assert [indexes.tolist() for indexes in found.inside(sought).values()] == [[1, 2] if least else [0, 1, 2, 3]]
    binary = composite({"a": [1], "b": [b"m"]}, {"a": [1], "b": [b"n"]})
    sought = SoughtKeys(pa.table({"a": [1], "b": [b"x"]}))
    assert [indexes.tolist() for indexes in binary.inside(sought).values()] == [[0]]


def overlap(found: KeyRanges) -> bool:
    """Return whether the first two files overlap in the order of whole keys."""
    return bool(found.begins[1] <= found.ends[0] and found.begins[0] <= found.ends[1])


def test_a_further_key_column_counts_only_behind_columns_of_one_value() -> None:
    inside = composite({"a": [1, 3], "b": [0, 0]}, {"a": [5, 4], "b": [9, 9]})
    assert inside.begins[0] < inside.begins[1] <= inside.ends[1] < inside.ends[0]
    assert overlap(composite({"a": [1, 5], "b": [0, 5]}, {"a": [5, 9], "b": [3, 9]}))
    assert overlap(composite({"a": [1, 1], "b": [None, 5]}, {"a": [1, 1], "b": [None, 9]})), "b is unknown"
    assert not overlap(composite({"a": [1, 1], "b": [0, 5]}, {"a": [1, 1], "b": [3, 9]}))


@pytest.mark.parametrize(("characters", "is_complete"), [(31, True), (32, False)])
def test_a_text_that_may_be_truncated_is_not_the_only_value_of_a_file(characters: int, is_complete: bool) -> None:  # noqa: FBT001 - a parameter
    texts: list[object] = ["m" * characters] * 2
    found = composite({"a": texts, "b": [0, 5]}, {"a": texts, "b": [3, 9]})
    assert overlap(found) is not is_complete


def test_files_whose_known_bounds_are_one_value_cannot_be_separated() -> None:
    same = "m" * 300
    assert ranges(pa.string(), (same, same, 0), (same, same, 0), ("a", "b", 0)).separable.tolist() == [
        False,
        False,
        True,
    ]
    found = composite({"a": [1, 1], "b": [b"a", b"b"]}, {"a": [1, 1], "b": [b"a", b"b"]})
    assert not found.separable.any()
    unknown = composite({"a": [1], "b": [None]}, {"a": [1], "b": [None]})
    assert not unknown.separable.any()
