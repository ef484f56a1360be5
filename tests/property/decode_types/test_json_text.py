"""JSON text that kernels write for Arrow columns, compared with Python's JSON reader and writer; compiled or not."""

import json
import math
import struct
from base64 import b64decode
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.oracles.twins import interpreted
from tidemark.decode.render import column_texts, json_columns, line_text, value_text
from tidemark.decode.render.column_texts import ColumnTexts
from tidemark.decode.render.json_columns import (
    Form,
    base64,
    booleans,
    dates,
    days,
    decimals,
    floats,
    in_hex,
    instants,
    integers,
    lists,
    lsns,
    numeric_texts,
    plain_floats,
    strings,
)
from tidemark.decode.types.codec import without_escapes
from tidemark.model.lsn import Lsn, format_lsn

TEXTS = st.none() | st.text(st.characters() | st.sampled_from('"\\\x00\x01\b\t\n\f\r\x1f\x7f\u2028'))
INTEGERS = st.none() | st.integers(-(1 << 63), (1 << 63) - 1)
DOUBLES = st.floats() | st.integers(0, (1 << 64) - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0])
SPECIAL = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
slow_text_columns = interpreted("tidemark.decode.arrow.text_columns")
slow_value_text = interpreted(
    "tidemark.decode.render.value_text", stand_in={"tidemark.decode.arrow.text_columns": slow_text_columns}
)
slow_line_text = interpreted(
    "tidemark.decode.render.line_text", stand_in={"tidemark.decode.render.value_text": slow_value_text}
)
LEAP_DAY = datetime(2000, 2, 29)  # noqa: DTZ001
BEFORE_IT = 3  # rows before the requested ones: arrays are slices of others


@pytest.fixture(params=["as built", "interpreted"], autouse=True)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with the kernels as they are built, and interpreted."""
    if request.param == "interpreted":
        if not line_text.COMPILED:
            pytest.skip("they are interpreted anyway")
        monkeypatch.setattr(json_columns, "value_text", slow_value_text)
        monkeypatch.setattr(json_columns, "line_text", slow_line_text)
        monkeypatch.setattr(column_texts, "TEXT_BYTES", 8)


def texts_of(values: pa.Array, form: Form) -> list[str]:
    """Return each value's text, written in two parts, into a buffer that is full at once."""
    column, texts = form(values), ColumnTexts()
    found = []
    for first, rows in ((0, len(values) // 2), (len(values) // 2, len(values) - len(values) // 2)):
        base = column.put(texts, first, rows)
        ends = list(texts.offsets[base : base + rows + 1])
        found += [bytes(texts.text[begin:end]).decode() for begin, end in pairwise(ends)]
    return found


def read(values: pa.Array, form: Form) -> list[object]:
    """Return the parsed JSON text of each value, also for a slice of an array."""
    reported = [json.loads(text) for text in texts_of(values, form)]
    longer = pa.concat_arrays([pa.nulls(BEFORE_IT, values.type), values]).slice(BEFORE_IT)
    assert [json.loads(text) for text in texts_of(longer, form)] == reported
    return reported


def sound(value: str | None) -> str | None:
    """Return a text as a codec returns it: invalid characters are replaced there."""
    return None if value is None else value.encode("utf-8", "replace").decode()


@given(st.lists(TEXTS, min_size=1))
@example(
    ["\x00", None, '"', "\\", "\\u0041", "\ud800", '\\"', "a\\", "\x1f\x7f", "long enough \n to be \x01 looked at"]
)
def test_texts_are_written_as_python_writes_them(values: list[str | None]) -> None:
    stored = [sound(value) for value in values]
    assert read(pa.array(stored, pa.string()), strings) == stored
    assert texts_of(pa.array(stored, pa.string()), strings) == [
        json.dumps(value, ensure_ascii=False) for value in stored
    ]


@given(st.binary())
def test_bytes_that_are_no_text_are_converted_to_valid_text(raw: bytes) -> None:
    value = without_escapes(raw.decode("utf-8", "surrogateescape"))
    assert read(pa.array([value], pa.string()), strings) == [value]


@given(st.lists(INTEGERS, min_size=1))
@example([0, -1, 9, 10, (1 << 63) - 1, -(1 << 63), None])
def test_integers_are_read_back(values: list[int | None]) -> None:
    assert read(pa.array(values, pa.int64()), integers) == values
    small = [None if value is None else value >> 48 for value in values]
    assert read(pa.array(small, pa.int16()), integers) == small


@given(st.lists(st.none() | st.booleans(), min_size=1))
def test_booleans_are_read_back(values: list[bool | None]) -> None:
    assert read(pa.array(values, pa.bool_()), booleans) == values


@given(st.lists(st.integers(0, (1 << 63) - 1), min_size=1))
@example([0, 1 << 32, (1 << 63) - 1, 15, 16])
def test_lsns_are_written_as_everywhere(values: list[int]) -> None:
    found = texts_of(pa.array(values, pa.int64()), lambda column: lsns(column.to_numpy()))
    assert found == [format_lsn(Lsn(value)) for value in values]


@given(st.lists(st.none() | DOUBLES, min_size=1))
@example([0.0, -0.0, 1e15, 1e16, 123456789.0, 5e-324, 2.0**-1022, 9007199254740993.0, 1e23, 1e22, None, 1e-4, 9e-5])
def test_doubles_are_written_as_python_writes_them(values: list[float | None]) -> None:
    array = pa.array(values, pa.float64())
    expected = [
        "null" if value is None else repr(value) if math.isfinite(value) else f'"{SPECIAL[repr(value)]}"'
        for value in array.to_pylist()
    ]
    assert texts_of(array, plain_floats) == expected


@given(st.lists(st.none() | st.floats(width=32), min_size=1))
@example([0.0, -0.0, 0.10000000149011612, 16777216.0, 2.0**-149, 2.0**-126, 1e-4, 3.4028234663852886e38, None])
def test_floats_of_single_precision_are_written_with_the_fewest_digits(values: list[float | None]) -> None:
    array = pa.array(values, pa.float32())
    for text, value in zip(texts_of(array, plain_floats), array, strict=True):
        if not value.is_valid or not math.isfinite(value.as_py()):
            assert text == ("null" if not value.is_valid else f'"{SPECIAL[repr(value.as_py())]}"')
            continue
        single = np.float32(value.as_py())
        assert np.float32(text) == single
        assert Decimal(text) == Decimal(np.format_float_scientific(single, unique=True))
        assert ("e" in text) == ("e" in repr(float(text)))


@given(st.lists(st.none() | DOUBLES, min_size=1), st.sampled_from([pa.float32(), pa.float64()]))
@example([0.0, -0.0, 1e9, 1e10, 123456789.0, 1e-5, 1e-6, 9e-7, math.nan, math.inf, -math.inf], pa.float32())
def test_floats_are_written_as_arrow_writes_them(values: list[float | None], kind: pa.DataType) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        array = pa.array(np.array([0.5 if value is None else value for value in values]).astype(kind.to_pandas_dtype()))
    expected = []
    for text in array.cast(pa.string()).to_pylist():
        named = SPECIAL.get(text.replace("-nan", "nan"))
        whole = not set(text) & set(".e")
        expected.append(f'"{named}"' if named else f"{text}.0" if whole else text)
    assert texts_of(array, floats) == expected


@given(st.lists(st.none() | st.lists(TEXTS), min_size=1))
@example([None, [], ["a", None], [None], ["]", ","]])
def test_lists_are_read_back(values: list[list[str | None] | None]) -> None:
    stored = [None if value is None else [sound(part) for part in value] for value in values]
    array = pa.array([["x"], *stored], pa.list_(pa.string())).slice(1)
    assert read(array, lambda column: lists(column, strings)) == stored


@given(st.lists(st.none() | st.binary(), min_size=1))
def test_bytes_are_written_in_base64_and_in_hex(values: list[bytes | None]) -> None:
    array = pa.array(values, pa.binary())
    reported = [None if text is None else b64decode(str(text)) for text in read(array, base64)]
    assert reported == values
    assert read(array, in_hex) == [None if value is None else f"\\x{value.hex()}" for value in values]


@given(st.lists(st.none() | st.datetimes(), min_size=1), st.sampled_from(["s", "ms", "us"]))
@example([datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), datetime(1969, 12, 31, 23, 59, 59, 1)], "us")  # noqa: DTZ001
@example([datetime(2000, 2, 29), datetime(1900, 3, 1), datetime(1600, 12, 31), None], "ms")  # noqa: DTZ001
@example([LEAP_DAY, LEAP_DAY, None, LEAP_DAY + timedelta(hours=1), LEAP_DAY + timedelta(days=1)], "s")
def test_instants_are_written_in_iso_form(values: list[datetime | None], unit: str) -> None:
    named = {"s": "seconds", "ms": "milliseconds", "us": "microseconds"}[unit]
    for zone, mark in ((None, ""), ("UTC", "Z")):
        aware = [value if value is None or zone is None else value.replace(tzinfo=UTC) for value in values]
        array = pa.array(aware, pa.timestamp("us", zone)).cast(pa.timestamp(unit, zone), safe=False)
        floored = [
            None if value is None else (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=usecs))
            for value, usecs in zip(
                values, array.cast(pa.timestamp("us", zone)).cast(pa.int64()).to_pylist(), strict=True
            )
        ]
        kept = [
            None if value is None else value.replace(tzinfo=None).isoformat(timespec=named) + mark for value in floored
        ]
        assert read(array, instants) == kept


@given(st.lists(st.none() | st.dates(), min_size=1))
def test_dates_are_written_in_iso_form_or_as_days(values: list[date | None]) -> None:
    array = pa.array(values, pa.date32())
    assert read(array, dates) == [None if value is None else value.isoformat() for value in values]
    assert read(array, days) == [None if value is None else (value - date(1970, 1, 1)).days for value in values]


@given(st.integers(0, 38), st.lists(st.none() | st.integers(-(10**38) + 1, 10**38 - 1), min_size=1))
@example(38, [0, 1, -1, 10**38 - 1])
@example(0, [0, 10**18, 10**36, -(10**37)])
@example(7, [0, 1, 12, 123])
def test_decimals_are_written_as_postgresql_writes_them(scale: int, values: list[int | None]) -> None:
    made = [
        None if value is None else Decimal((int(value < 0), tuple(map(int, str(abs(value)))), -scale))
        for value in values
    ]
    array = pa.array(made, pa.decimal128(38, scale))
    assert read(array, decimals) == [None if value is None else f"{value:f}" for value in array.to_pylist()]


def test_numerics_that_are_no_numbers_have_names() -> None:
    texts = ["1.50", "NaN", "Infinity", "-Infinity", None, "-1", "9" * 300]
    names = {"NaN": "NAN", "Infinity": "POSITIVE_INFINITY", "-Infinity": "NEGATIVE_INFINITY"}
    found = read(pa.array(texts, pa.string()), numeric_texts)
    assert found == [None if text is None else names.get(text, text) for text in texts]


@pytest.mark.skipif(not value_text.COMPILED, reason="the kernels are not compiled here")
def test_one_of_the_kernels_is_compiled_and_one_is_not() -> None:
    assert line_text.COMPILED
    assert not slow_value_text.COMPILED
    assert not slow_line_text.COMPILED
