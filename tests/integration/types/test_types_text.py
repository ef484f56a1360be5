"""Each codec compared with the server: the bytes of a heap page against the type's own output function."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.rows import TupleRow

from tests.support.samples.type_samples import SAMPLES
from tests.support.servers.heap_pages import load_values, output_texts, stored_values
from tests.support.servers.postgres import Cluster, new_cluster
from tests.support.servers.servers import MAJORS
from tidemark.decode.types.codec import Dialect
from tidemark.decode.types.registry import column_codec

# Scales below zero and greater than the precision, and an interval that overflows on input.
REFUSED_BY_14 = frozenset({"numeric(5,-2)", "numeric(3,5)", "2562047788:00:54.775807"})


@pytest.fixture(scope="module", params=MAJORS)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with new_cluster(request.param) as made:
        yield made


@pytest.mark.feature("P12")
@pytest.mark.parametrize("declaration", SAMPLES)
def test_text_equals_the_servers_output_function(
    cluster: Cluster, session: psycopg.Connection[TupleRow], declaration: str
) -> None:
    refused = REFUSED_BY_14 if cluster.major == 14 else frozenset()
    if declaration in refused:
        pytest.skip("not a type of 14")
    values = [value for value in SAMPLES[declaration] if value not in refused]
    load_values(session, "one_type", declaration, [*values, None])
    column, datums = stored_values(cluster.data, session, "one_type")
    codec = column_codec(column, Dialect.of("UTF8", cluster.major))
    texts = [codec.text(datum) if isinstance(datum, bytes) else datum for datum in datums]
    assert texts == output_texts(session, "one_type")
