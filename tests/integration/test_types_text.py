"""Each codec beside the server: the bytes of a heap page against what the type's own output function says."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.rows import TupleRow

from tests.support.heap_pages import load_values, output_texts, stored_values
from tests.support.postgres import Cluster
from tests.support.type_samples import SAMPLES, TYPES_DDL
from tidemark.decode.codecs.codec import Dialect
from tidemark.decode.codecs.registry import column_codec

DATABASE = "types_text"


@pytest.fixture(scope="module")
def session(cluster: Cluster) -> Iterator[psycopg.Connection[TupleRow]]:
    cluster.sql(f"CREATE DATABASE {DATABASE}")
    with cluster.connect(DATABASE) as opened:
        opened.prepare_threshold = None  # the table changes its types under equal statements
        for statement in TYPES_DDL:
            opened.execute(statement)
        yield opened


@pytest.mark.parametrize("declaration", SAMPLES)
def test_text_equals_the_servers_output_function(
    cluster: Cluster, session: psycopg.Connection[TupleRow], declaration: str
) -> None:
    load_values(session, "one_type", declaration, [*SAMPLES[declaration], None])
    column, datums = stored_values(cluster.data, session, "one_type")
    codec = column_codec(column, Dialect.of("UTF8", cluster.major))
    texts = [codec.text(datum) if isinstance(datum, bytes) else datum for datum in datums]
    assert texts == output_texts(session, "one_type")
