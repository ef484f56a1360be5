"""Other Arrow types for the same values, by configuration (`tidemark.model.mapping`). The text form never changes."""

from base64 import b64encode
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa

from tidemark.decode.types.codec import ArrowValue, Codec, Dialect, TextCodec
from tidemark.decode.types.families.datetimes import DateCodec, TimeCodec, TimestampCodec
from tidemark.decode.types.families.intervals import IntervalCodec, IntervalIsoCodec, IntervalUsecsCodec
from tidemark.decode.types.families.numbers import MoneyCodec
from tidemark.decode.types.families.numeric import DecimalCodec, NumericCodec, declared_digits
from tidemark.decode.types.families.strings import ByteaCodec
from tidemark.model.commit_time import USECS_PER_MILLISECOND
from tidemark.model.mapping import Binary, Decimals, Intervals, OutOfRange, TimePrecision


class ConvertedCodec(Codec):
    """A codec whose Arrow values are converted; NULL remains NULL."""

    def __init__(self, plain: Codec, arrow_type: pa.DataType, convert: Callable[[ArrowValue], ArrowValue]) -> None:
        self._plain = plain
        self._convert = convert
        self.arrow_type = arrow_type

    def text(self, payload: bytes) -> str:
        """Return the text of the plain codec."""
        return self._plain.text(payload)

    def arrow_value(self, payload: bytes) -> ArrowValue:
        """Return the converted value."""
        return self._converted(self._plain.arrow_value(payload))

    def parse_text(self, text: str) -> ArrowValue:
        """Return the converted value."""
        return self._converted(self._plain.parse_text(text))

    def _converted(self, value: ArrowValue) -> ArrowValue:
        return None if value is None else self._convert(value)


class PrintedCodec(TextCodec):
    """A codec whose Arrow value is its text."""

    def __init__(self, plain: Codec) -> None:
        self._plain = plain

    def text(self, payload: bytes) -> str:
        """Return the text of the plain codec."""
        return self._plain.text(payload)


def numeric_codec(typmod: int, dialect: Dialect) -> Codec:
    """Return the codec of `numeric` with that typmod."""
    match dialect.mapping.decimals:
        case Decimals.STRING:
            return NumericCodec()
        case Decimals.DOUBLE:
            return ConvertedCodec(NumericCodec(), pa.float64(), _to_double)
        case Decimals.PRECISE:
            digits = declared_digits(typmod)
            return DecimalCodec(*digits) if digits else NumericCodec()


def money_codec(dialect: Dialect) -> Codec:
    """Return the codec of `money`."""
    match dialect.mapping.decimals:
        case Decimals.STRING:
            return ConvertedCodec(MoneyCodec(), pa.string(), str)
        case Decimals.DOUBLE:
            return ConvertedCodec(MoneyCodec(), pa.float64(), _to_double)
        case Decimals.PRECISE:
            return MoneyCodec()


def bytea_codec(dialect: Dialect) -> Codec:
    """Return the codec of `bytea`."""
    match dialect.mapping.binary:
        case Binary.BASE64:
            return ConvertedCodec(ByteaCodec(), pa.string(), lambda value: b64encode(_bytes(value)).decode("ascii"))
        case Binary.HEX:
            return ConvertedCodec(ByteaCodec(), pa.string(), lambda value: _bytes(value).hex())
        case Binary.BYTES:
            return ByteaCodec()


def interval_codec(dialect: Dialect) -> Codec:
    """Return the codec of `interval`."""
    match dialect.mapping.intervals:
        case Intervals.ISO_8601:
            return IntervalIsoCodec(dialect)
        case Intervals.MICROSECONDS:
            return IntervalUsecsCodec(dialect)
        case Intervals.POSTGRES:
            return IntervalCodec(dialect)


def date_codec(dialect: Dialect) -> Codec:
    """Return the codec of `date`."""
    beyond = dialect.mapping.out_of_range
    return PrintedCodec(DateCodec()) if beyond is OutOfRange.STRING else DateCodec(nulls=beyond is OutOfRange.NULL)


def time_codec(dialect: Dialect) -> Codec:
    """Return the codec of `time`."""
    if dialect.mapping.time_precision is TimePrecision.MICROSECONDS:
        return TimeCodec()
    return ConvertedCodec(TimeCodec(), pa.int64(), lambda usecs: _integer(usecs) // USECS_PER_MILLISECOND)


def timestamp_codec(dialect: Dialect, *, zone: bool) -> Codec:
    """Return the codec of `timestamp` or `timestamptz`."""
    beyond = dialect.mapping.out_of_range
    if beyond is OutOfRange.STRING:
        return PrintedCodec(TimestampCodec(zone=zone))
    plain = TimestampCodec(zone=zone, nulls=beyond is OutOfRange.NULL)
    if dialect.mapping.time_precision is TimePrecision.MICROSECONDS:
        return plain
    return ConvertedCodec(plain, plain.arrow_type, _whole_milliseconds)


def _whole_milliseconds(usecs: ArrowValue) -> ArrowValue:
    return _integer(usecs) // USECS_PER_MILLISECOND * USECS_PER_MILLISECOND


def _to_double(value: ArrowValue) -> float:
    assert isinstance(value, str | Decimal), value
    return float(value)


def _bytes(value: ArrowValue) -> bytes:
    assert isinstance(value, bytes), value
    return value


def _integer(value: ArrowValue) -> int:
    assert isinstance(value, int), value
    return value
