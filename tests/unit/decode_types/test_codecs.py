"""The rules of codecs that no server can check: clamps, NULL for NaN, dialects, fall-backs."""

import struct
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest

from tests.support.forged import tuple_forms as forms
from tidemark.decode.types.codec import ArrowValue, Dialect
from tidemark.decode.types.encodings import PYTHON_ENCODINGS, UnsupportedEncoding
from tidemark.decode.types.families.numeric import declared_digits
from tidemark.decode.types.registry import codec_for
from tidemark.model.lsn import Oid
from tidemark.model.relation import TypeDescription, TypeKind

FIRST_DAY, LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31, from 1970-01-01
DAY_US = 86_400_000_000


@pytest.mark.parametrize(
    ("described", "form", "number", "arrow"),
    [
        (forms.DATE, "<i", 2**31 - 1, LAST_DAY),
        (forms.DATE, "<i", -(2**31), FIRST_DAY),
        (forms.DATE, "<i", LAST_DAY - 10_957 + 1, LAST_DAY),
        (forms.DATE, "<i", FIRST_DAY - 10_957 - 1, FIRST_DAY),
        (forms.DATE, "<i", 0, 10_957),
        (forms.TIMESTAMP, "<q", 2**63 - 1, (LAST_DAY + 1) * DAY_US - 1),
        (forms.TIMESTAMP, "<q", -(2**63), FIRST_DAY * DAY_US),
        (forms.TIMESTAMPTZ, "<q", 2**63 - 1, (LAST_DAY + 1) * DAY_US - 1),
        (forms.TIMESTAMPTZ, "<q", 0, 10_957 * DAY_US),
    ],
)
def test_values_beyond_the_range_of_arrows_readers_are_clamped(
    described: TypeDescription, form: str, number: int, arrow: int
) -> None:
    payload = struct.pack(form, number)
    codec = codec_for(described)
    assert codec.arrow_value(payload) == arrow
    assert codec.parse_text(codec.text(payload)) == arrow


@pytest.mark.parametrize(
    ("precision", "scale", "digits"),
    [(10, 2, (10, 2)), (38, 38, (38, 38)), (39, 0, None), (5, -2, (7, 0)), (3, 5, (5, 5)), (38, -1, None)],
)
def test_declared_digits_fit_a_decimal_or_there_is_none(
    precision: int, scale: int, digits: tuple[int, int] | None
) -> None:
    assert declared_digits(forms.numeric_typmod(precision, scale)) == digits


def test_a_numeric_without_a_declaration_is_text() -> None:
    assert declared_digits(-1) is None
    assert codec_for(forms.NUMERIC).arrow_value(forms.numeric_payload(Decimal("1.50"))) == "1.50"


@pytest.mark.parametrize("number", ["NaN", "123456789012"])
def test_a_number_that_its_decimal_cannot_hold_is_null(number: str) -> None:
    codec = codec_for(forms.NUMERIC, forms.numeric_typmod(10, 2))
    assert codec.arrow_value(forms.numeric_payload(Decimal(number))) is None


@pytest.mark.parametrize(("major", "text"), [(14, "\udce9"), (15, "\\351")])
def test_char_over_ascii_prints_as_the_major_does(major: int, text: str) -> None:
    assert codec_for(forms.CHAR, dialect=Dialect.of("UTF8", major)).text(b"\xe9") == text


@pytest.mark.parametrize(("major", "text"), [(16, "178956970 years 7 mons 2147483647 days"), (17, "infinity")])
def test_interval_has_infinity_since_17(major: int, text: str) -> None:
    payload = struct.pack("<qii", 2**63 - 1, 2**31 - 1, 2**31 - 1)
    assert codec_for(forms.INTERVAL, dialect=Dialect.of("UTF8", major)).text(payload).startswith(text)


def test_invalid_text_keeps_its_bytes_in_text_and_not_in_arrow() -> None:
    codec = codec_for(forms.TEXT)
    assert codec.text(b"\xff").encode("utf-8", "surrogateescape") == b"\xff"
    assert codec.arrow_value(b"\xff") == "\ufffd"
    assert codec.parse_text("\udcff") == "\ufffd"


@pytest.mark.parametrize("encoding", PYTHON_ENCODINGS)
def test_every_encoding_reads_ascii(encoding: str) -> None:
    assert Dialect.of(encoding, 15).decode(b"plain text") == "plain text"


def test_an_encoding_without_a_codec_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedEncoding, match="MULE_INTERNAL"):
        Dialect.of("MULE_INTERNAL", 15)


@pytest.mark.feature("P12")
def test_a_type_without_a_codec_arrives_as_its_bytes() -> None:
    codec = codec_for(forms.array_of(forms.UNKNOWN))
    payload = b"\1\2\3"
    assert (codec.text(payload), codec.arrow_value(payload)) == ("\\x010203", payload)


@pytest.mark.parametrize(
    ("described", "text", "value"),
    [
        (forms.BYTEA, "\\x00ff", b"\0\xff"),
        (forms.BYTEA, "a\\\\b\\000", b"a\\b\0"),
        (forms.TIMESTAMPTZ, "1970-01-01 01:00:00.5+01", 500_000),
        (forms.TIMESTAMPTZ, "1969-12-31 18:30:00-05:30", 0),
        (forms.TIME, "24:00:00", DAY_US),
        (forms.array_of(forms.TEXT), '[2:3]={"a,b",NULL}', ["a,b", None]),
        (forms.array_of(forms.INT4), "{{1,2},{3,4}}", [1, 2, 3, 4]),
    ],
)
def test_text_is_read_as_the_value_that_it_prints(described: TypeDescription, text: str, value: ArrowValue) -> None:
    assert codec_for(described).parse_text(text) == value


def test_a_query_of_any_depth_prints() -> None:
    terms = 5000  # a & a & a ...: the left side nests as deep; Python's recursion limit is lower
    operand, operator = struct.pack("<bBbxiI", 1, 0, 0, 0, 1), struct.pack("<bbhI4x", 2, 2, 0, 2)
    items = (operator + operand) * (terms - 1) + operand
    payload = struct.pack("<i", terms * 2 - 1) + items + b"a\0"
    assert codec_for(forms.BY_NAME["tsquery"]).text(payload) == " & ".join(["'a'"] * terms)


@pytest.mark.parametrize("text", ["-", "0"])
def test_no_object_is_the_oid_zero(text: str) -> None:
    assert codec_for(forms.BY_NAME["regproc"]).parse_text(text) == 0


def test_a_name_in_place_of_an_oid_is_null_if_only_the_name_is_known() -> None:
    assert codec_for(forms.BY_NAME["regproc"]).parse_text("now") is None


def test_values_composed_of_a_type_without_a_codec_arrive_as_their_bytes() -> None:
    regproc = forms.BY_NAME["regproc"]
    row = replace(forms.ROW, attributes=(forms.column(1, forms.INT4), forms.column(2, regproc)))
    for described in (row, forms.array_of(row), forms.made_of(TypeKind.RANGE, "procs", regproc)):
        assert codec_for(described).arrow_value(b"\1\2\3") == b"\1\2\3", described.name


def test_a_type_of_an_extension_is_recognised_by_its_name_unless_it_is_built_in() -> None:
    vector = forms.BY_NAME["vector"]
    assert codec_for(vector).arrow_type == pa.list_(pa.float32())
    assert codec_for(replace(vector, oid=Oid(16_000))).arrow_type == pa.binary()
