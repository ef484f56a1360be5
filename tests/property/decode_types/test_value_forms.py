"""Hand-made values are decoded to their originals: numeric, jsonb, arrays, floats."""

import json
import struct
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from tests.support.forged import tuple_forms as forms
from tidemark.decode.types.codec import Dialect
from tidemark.decode.types.families.calendar import civil_date, clock_text, date_text, days_of, parse_clock, parse_date
from tidemark.decode.types.families.float_text import double_text, single_text
from tidemark.decode.types.families.json_binary import JsonbCodec
from tidemark.decode.types.families.numeric import numeric_text
from tidemark.decode.types.registry import codec_for

PLAIN_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
NUMBERS = st.decimals(allow_nan=False, allow_infinity=False, places=9)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | PLAIN_TEXT,
    lambda children: st.lists(children, max_size=5) | st.dictionaries(PLAIN_TEXT, children, max_size=5),
    max_leaves=20,
)


@given(st.decimals(allow_infinity=False, allow_nan=False))
def test_numeric_prints_every_digit_up_to_its_display_scale(number: Decimal) -> None:
    zero = number.copy_abs() if number.is_zero() else number  # numeric has no negative zero
    assert numeric_text(forms.numeric_payload(number)) == f"{zero:f}"


@given(JSON)
def test_jsonb_prints_as_json_with_blanks_after_colon_and_comma(value: forms.JsonValue) -> None:
    text = JsonbCodec(Dialect()).text(forms.jsonb_payload(value))
    assert text == forms.json_text(value)
    json.loads(text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_double_text_reads_back_as_the_same_number(number: float) -> None:
    text = double_text(struct.pack("<d", number))
    assert struct.pack("<d", float(text)) == struct.pack("<d", number)
    assert len(text) <= 24


@given(st.integers(0, 2**32 - 1))
def test_single_text_reads_back_as_the_same_number(bits: int) -> None:
    payload = struct.pack("<I", bits)
    (number,) = struct.unpack("<f", payload)
    text = single_text(payload)
    assert text == "NaN" if number != number else struct.pack("<f", float(text)) == payload  # noqa: PLR0124 - NaN


@given(st.integers(-3_000_000_000, 3_000_000_000))
def test_dates_are_the_inverse_of_days(days: int) -> None:
    assert days_of(*civil_date(days)) == days
    assert parse_date("".join(date_text(days))) == days


@given(st.integers(0, 86_400_000_000))
def test_clock_text_reads_back(usecs: int) -> None:
    assert parse_clock(clock_text(usecs)) == usecs


@given(st.lists(st.none() | PLAIN_TEXT, min_size=1, max_size=12))
def test_an_array_literal_reads_back_as_its_elements(texts: list[str | None]) -> None:
    datums = [None if text is None else forms.plain(text.encode()) for text in texts]
    payload = forms.array_payload(forms.TEXT, datums, [len(texts)], [1])
    codec = codec_for(forms.array_of(forms.TEXT))
    assert codec.arrow_value(payload) == texts
    assert codec.parse_text(codec.text(payload)) == texts
