"""Mapping modes: the same from disk and from COPY's text, and equal to the server's output where it has such a form."""

import base64
import math
from collections.abc import Callable, Sequence
from decimal import Decimal

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from psycopg.rows import TupleRow

from tests.support.forged.spans import inserts
from tests.support.samples.type_samples import SAMPLES
from tests.support.servers.heap_pages import describe_relation, load_values, output_texts, packed_tuples
from tests.support.servers.postgres import Cluster
from tidemark.decode.arrow.batches import BatchBuilder
from tidemark.decode.types.codec import ArrowValue, Dialect
from tidemark.decode.types.registry import column_codec
from tidemark.model.lsn import Oid
from tidemark.model.mapping import Binary, Decimals, Intervals, OutOfRange, TimePrecision, TypeMapping


def mapped(
    cluster: Cluster, session: psycopg.Connection[TupleRow], declaration: str, mapping: TypeMapping
) -> tuple[pa.DataType, list[ArrowValue]]:
    """Load the samples; return the column's type, and its values in the samples' order, after checking both inputs."""
    load_values(session, "one_type", declaration, SAMPLES[declaration])
    relation = describe_relation(session, "one_type")
    dialect = Dialect.of("UTF8", cluster.major, mapping)
    packed = packed_tuples(cluster.data, session, "one_type")
    (batch,) = BatchBuilder(Oid(1), relation, dialect).build(inserts(packed))
    batch.rows.validate(full=True)
    number, value = batch.rows.column("_after").flatten()
    values: list[ArrowValue] = value.take(pc.sort_indices(number)).to_pylist()
    codec = column_codec(relation.columns[1], dialect)
    texts = output_texts(session, "one_type")
    parsed = pa.array([codec.parse_text(text) for text in texts if text is not None], value.type)
    assert repr(parsed.to_pylist()) == repr(values)
    return value.type, values


def said(session: psycopg.Connection[TupleRow], expression: str) -> list[ArrowValue]:
    """Return the server's result for each value."""
    return [row[0] for row in session.execute(f"SELECT {expression} FROM one_type ORDER BY number".encode())]


@pytest.mark.feature("P13")
@pytest.mark.parametrize("declaration", ["numeric", "numeric(10,2)", "numeric(38,10)", "numeric(50,3)", "money"])
def test_decimals_as_text_keep_everything(
    cluster: Cluster, session: psycopg.Connection[TupleRow], declaration: str
) -> None:
    kind, values = mapped(cluster, session, declaration, TypeMapping(decimals=Decimals.STRING))
    assert kind == pa.string()
    assert values == said(session, "value::numeric::text")


@pytest.mark.feature("P13")
@pytest.mark.parametrize("declaration", ["numeric(10,2)", "numeric(38,10)", "money"])
def test_decimals_as_doubles_are_what_the_server_rounds_to(
    cluster: Cluster, session: psycopg.Connection[TupleRow], declaration: str
) -> None:
    kind, values = mapped(cluster, session, declaration, TypeMapping(decimals=Decimals.DOUBLE))
    assert kind == pa.float64()
    assert repr(values) == repr(said(session, "value::numeric::float8"))


@pytest.mark.feature("P13")
def test_a_decimal_outside_the_range_of_doubles_is_infinite_or_zero(
    cluster: Cluster, session: psycopg.Connection[TupleRow]
) -> None:
    _, values = mapped(cluster, session, "numeric", TypeMapping(decimals=Decimals.DOUBLE))
    by_sample = dict(zip(SAMPLES["numeric"], values, strict=True))
    assert (by_sample["1e130000"], by_sample["1e-1000"], by_sample["Infinity".lower()]) == (math.inf, 0.0, math.inf)


@pytest.mark.feature("P13")
@pytest.mark.parametrize(
    ("mode", "encode"),
    [(Binary.BASE64, lambda raw: base64.b64encode(raw).decode()), (Binary.HEX, lambda raw: raw.hex())],
)
def test_binary_as_text(
    cluster: Cluster, session: psycopg.Connection[TupleRow], mode: Binary, encode: Callable[[bytes], str]
) -> None:
    kind, values = mapped(cluster, session, "bytea", TypeMapping(binary=mode))
    assert kind == pa.string()
    assert values == [encode(raw) for raw in said(session, "value") if isinstance(raw, bytes)]


@pytest.mark.feature("P13")
def test_intervals_in_style_iso_8601(cluster: Cluster, session: psycopg.Connection[TupleRow]) -> None:
    kind, values = mapped(cluster, session, "interval", TypeMapping(intervals=Intervals.ISO_8601))
    assert kind == pa.string()
    session.execute("SET IntervalStyle = iso_8601")
    assert values == output_texts(session, "one_type")
    session.execute("RESET IntervalStyle")


@pytest.mark.feature("P13")
def test_intervals_in_microseconds_are_the_servers_epoch(
    cluster: Cluster, session: psycopg.Connection[TupleRow]
) -> None:
    kind, values = mapped(cluster, session, "interval", TypeMapping(intervals=Intervals.MICROSECONDS))
    assert kind == pa.int64()
    epochs = [epoch for epoch in said(session, "extract(epoch FROM value) * 1000000") if isinstance(epoch, Decimal)]
    assert values == [min(max(int(epoch), -(2**63)), 2**63 - 1) for epoch in epochs]


@pytest.mark.feature("P13")
@pytest.mark.parametrize("declaration", ["time", "timestamp", "timestamp with time zone"])
def test_times_in_milliseconds_drop_smaller_units(
    cluster: Cluster, session: psycopg.Connection[TupleRow], declaration: str
) -> None:
    fine_kind, fine = mapped(cluster, session, declaration, TypeMapping())
    kind, coarse = mapped(cluster, session, declaration, TypeMapping(time_precision=TimePrecision.MILLISECONDS))
    assert kind == fine_kind
    if declaration == "time":
        assert coarse == said(session, "floor(extract(epoch FROM value) * 1000)::bigint")
    else:
        assert usecs(coarse, kind) == [value // 1000 * 1000 for value in usecs(fine, kind)]


def usecs(values: Sequence[ArrowValue], kind: pa.DataType) -> list[int]:
    counted: list[int] = pa.array(values, kind).cast(pa.int64()).to_pylist()
    return counted


@pytest.mark.feature("P13")
@pytest.mark.parametrize("declaration", ["date", "timestamp", "timestamp with time zone"])
def test_values_out_of_range_are_null_and_no_others(
    cluster: Cluster, session: psycopg.Connection[TupleRow], declaration: str
) -> None:
    _, clamped = mapped(cluster, session, declaration, TypeMapping())
    kind, values = mapped(cluster, session, declaration, TypeMapping(out_of_range=OutOfRange.NULL))
    outside = said(session, "value < '0001-01-01' OR value >= '10000-01-01'")
    assert True in outside
    assert values == [None if out else value for out, value in zip(outside, clamped, strict=True)]
    assert kind == column_type(session, cluster)


def column_type(session: psycopg.Connection[TupleRow], cluster: Cluster) -> pa.DataType:
    (_, column) = describe_relation(session, "one_type").columns
    return column_codec(column, Dialect.of("UTF8", cluster.major)).arrow_type


@pytest.mark.feature("P13")
@pytest.mark.parametrize("declaration", ["date", "timestamp", "timestamp with time zone"])
def test_dates_as_text_keep_everything(
    cluster: Cluster, session: psycopg.Connection[TupleRow], declaration: str
) -> None:
    kind, values = mapped(cluster, session, declaration, TypeMapping(out_of_range=OutOfRange.STRING))
    assert kind == pa.string()
    assert values == output_texts(session, "one_type")


@pytest.mark.feature("P13")
def test_arrays_and_domains_are_mapped_as_their_elements(
    cluster: Cluster, session: psycopg.Connection[TupleRow]
) -> None:
    mapping = TypeMapping(Decimals.DOUBLE, Binary.HEX, Intervals.ISO_8601, TimePrecision.MILLISECONDS, OutOfRange.NULL)
    expected = {
        "numeric(10,2)[]": (pa.float64(), [[1.5, None, -2.25]]),
        "bytea[]": (pa.string(), [["00ff", None, ""]]),
        "interval[]": (pa.string(), [["P1D", "PT-2H", None]]),
        "time[]": (pa.int64(), [[43_200_000, None]]),
    }
    for declaration, (element, values) in expected.items():
        assert mapped(cluster, session, declaration, mapping) == (pa.list_(element), values), declaration
    _, days = mapped(cluster, session, "date[]", mapping)
    assert str(days) == "[[datetime.date(2024, 1, 1), None, None]]"
