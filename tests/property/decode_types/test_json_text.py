"""JSON text that is made of whole Arrow columns, beside Python's own reader of JSON."""

import json
import math
from collections.abc import Callable

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from tidemark.decode.codecs.codec import without_escapes
from tidemark.decode.render.json_text import Pieces, floats, joined, lists, numbers, quoted

TEXTS = st.none() | st.text(st.characters() | st.sampled_from('"\\\x00\x01\b\t\n\f\r\x1f\x7f\u2028'))
INTEGERS = st.none() | st.integers(-(1 << 63), (1 << 63) - 1)


def read(values: pa.Array, form: Callable[[pa.Array], Pieces]) -> list[object]:
    """Return what JSON's reader makes of each value's text."""
    return [json.loads(line) for line in joined(form(values), len(values)).to_pylist()]


def sound(value: str | None) -> str | None:
    """Return a text as a codec gives it: what is no character is replaced there."""
    return None if value is None else value.encode("utf-8", "replace").decode()


@given(st.lists(TEXTS, min_size=1))
@example(["\x00", None, '"', "\\", "\\u0041", "\ud800", '\\"', "a\\", "\x1f\x7f"])
def test_texts_are_read_back_as_they_are(values: list[str | None]) -> None:
    stored = [sound(value) for value in values]
    assert read(pa.array(stored, pa.string()), quoted) == stored
    assert read(pa.array([None, *stored], pa.string()).slice(1), quoted) == stored, "also of a part of an array"


@given(st.binary())
def test_bytes_that_are_no_text_come_as_sound_text(raw: bytes) -> None:
    value = without_escapes(raw.decode("utf-8", "surrogateescape"))
    assert read(pa.array([value], pa.string()), quoted) == [value]


@given(st.lists(INTEGERS, min_size=1))
def test_integers_are_read_back(values: list[int | None]) -> None:
    assert read(pa.array(values, pa.int64()), numbers) == values


@given(st.lists(st.none() | st.floats(), min_size=1))
@example([0.0, -0.0, 1e15, 1e16, 123456789.0, 5e-324, math.nan, math.inf, -math.inf, None])
def test_floats_are_read_back_as_floats(values: list[float | None]) -> None:
    told = read(pa.array(values, pa.float64()), floats)
    for value, found in zip(values, told, strict=True):
        if value is None:
            assert found is None
        elif math.isfinite(value):
            assert isinstance(found, float)
            assert repr(found) == repr(value)
        else:
            assert found == {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[repr(value)]


@given(st.lists(st.none() | st.lists(TEXTS), min_size=1))
@example([None, [], ["a", None], [None], ["]", ","]])
def test_lists_are_read_back(values: list[list[str | None] | None]) -> None:
    stored = [None if value is None else [sound(part) for part in value] for value in values]
    array = pa.array([["x"], *stored], pa.list_(pa.string())).slice(1)
    assert read(array, lambda column: lists(column, quoted)) == stored
