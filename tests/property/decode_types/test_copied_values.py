"""COPY's text parsed by the loops equals the codecs' result, compiled and interpreted."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.support.oracles.twins import interpreted
from tidemark.decode.arrow.batch_message import BatchMessage, message_form
from tidemark.decode.copy import copied_lines
from tidemark.decode.copy.copied_lines import ColumnTarget, CopiedLines, parse_column, put_column
from tidemark.decode.types.codec import Codec
from tidemark.decode.types.families.datetimes import TimestampCodec
from tidemark.decode.types.families.numbers import IntegerCodec
from tidemark.decode.types.families.numeric import DecimalCodec

slow_fields = interpreted("tidemark.decode.copy.copy_fields")
LOOPS = ("fill_instants", "fill_numbers", "fill_texts", "find_fields", "find_nulls")
SMALL, INTEGER, BIG = (
    IntegerCodec(form, wanted) for form, wanted in (("<h", pa.int16()), ("<i", pa.int32()), ("<q", pa.int64()))
)
AT, LOCAL = TimestampCodec(zone=True), TimestampCodec(zone=False)
ODD = ["infinity", "-infinity", "0044-03-15 12:00:00 BC", "20000-01-01 00:00:00"]


def lines_of(fields: list[str | None]) -> bytes:
    return b"".join(b"x\\\\\t%s\t\n" % (b"\\N" if field is None else field.encode()) for field in fields)


def read(codec: Codec, fields: list[str | None]) -> pa.Array:
    lines = lines_of(fields)
    copied = CopiedLines(lines, len(fields), 3)
    made = put(copied, codec.arrow_type, partial(put_column, codec, copied, 1))
    assert made is not None
    assert made.equals(parse_column(codec, CopiedLines(lines, len(fields), 3).texts(1)))
    return made


def put(lines: CopiedLines, wanted: pa.DataType, way: Callable[[ColumnTarget], bool | None]) -> pa.Array | None:
    """Return the column that `way` put into a batch, None if it refused to."""
    form = message_form(1, 3 if wanted == pa.string() else 2)
    message = BatchMessage(form, 0)
    if way(ColumnTarget(message, form.nodes, form.buffers)) is False:
        return None
    made = pa.ipc.read_record_batch(message.finish(lines.rows), pa.schema([("value", wanted)])).column(0)
    made.validate(full=True)
    return made


def column(texts: st.SearchStrategy[str]) -> st.SearchStrategy[list[str | None]]:
    return st.lists(st.none() | texts, max_size=20)


@given(column(st.integers(-(1 << 15), (1 << 15) - 1).map(str)))
def test_small_integers_are_read_as_their_codec_reads_them(fields: list[str | None]) -> None:
    for codec in (SMALL, INTEGER, BIG):
        assert read(codec, fields).to_pylist() == [None if field is None else int(field) for field in fields]


@given(column(st.integers(-(1 << 63), (1 << 63) - 1).map(str)))
def test_integers_of_64_bits_are_read_as_their_codec_reads_them(fields: list[str | None]) -> None:
    assert read(BIG, fields).to_pylist() == [None if field is None else int(field) for field in fields]


@given(st.integers(0, 30), st.integers(1, 8), st.data())
def test_decimals_are_read_as_their_codec_reads_them(scale: int, whole: int, data: st.DataObject) -> None:
    bound = 10 ** (scale + whole) - 1
    numbers = st.integers(-bound, bound).map(
        lambda number: format(Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale)), "f")
    )
    fields = data.draw(column(numbers | st.just("NaN")))
    wanted = [None if field in {None, "NaN"} else Decimal(str(field)) for field in fields]
    assert read(DecimalCodec(scale + whole, scale), fields).to_pylist() == wanted


@given(column(st.datetimes().map(lambda at: at.isoformat(" ")) | st.sampled_from(ODD)))
def test_instants_are_read_as_their_codec_reads_them(fields: list[str | None]) -> None:
    read(LOCAL, [field.rstrip("0") if field and "." in field else field for field in fields])
    read(AT, [field if field is None or field in ODD else f"{field}+00" for field in fields])


def test_an_instant_equals_its_text() -> None:
    for days in range(-719_000, 2_900_000, 997):
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=days, seconds=days % 86400, microseconds=days % 1000)
        assert read(AT, [at.isoformat(" ").removesuffix(":00")]).to_pylist() == [at]


@given(
    st.lists(st.lists(st.none() | st.text("ab\\N\t\n0123456789.-: +\r\b\f\vä", max_size=30), min_size=3, max_size=3))
)
def test_twins_read_the_same(rows: list[list[str | None]]) -> None:
    data = b"".join(b"\t".join(map(escaped, row)) + b"\n" for row in rows)
    fast = [columns_of(data, len(rows))]
    kept = {name: getattr(copied_lines, name) for name in LOOPS}
    try:
        for name in LOOPS:
            setattr(copied_lines, name, getattr(slow_fields, name))
        slow = [columns_of(data, len(rows))]
    finally:
        for name, loop in kept.items():
            setattr(copied_lines, name, loop)
    assert fast == slow
    assert fast[0][0] == [list(column) for column in zip(*rows, strict=True)] or not rows


def escaped(field: str | None) -> bytes:
    if field is None:
        return b"\\N"
    for letter, plain in zip("\\bfnrtv", "\\\b\f\n\r\t\v", strict=True):
        field = field.replace(plain, f"\\{letter}")
    return field.encode()


def columns_of(data: bytes, rows: int) -> tuple[list[object], list[object]]:
    lines = CopiedLines(data, rows, 3)
    wanted = (pa.int64(), pa.int32(), pa.decimal128(5, 2))
    tried = [put(lines, of, partial(lines.put_numbers, at, of)) for at in range(3) for of in wanted]
    tried += [put(lines, LOCAL.arrow_type, partial(lines.put_instants, at, LOCAL.arrow_type)) for at in range(3)]
    tried += [put(lines, pa.string(), partial(lines.put_texts, at)) for at in range(3)]
    return [lines.texts(at).to_pylist() for at in range(3)], [made and made.to_pylist() for made in tried]
