"""pgvector's types compared with pip's server, which has the extension."""

from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import TupleRow

from tests.support.samples.extension_samples import VECTOR_SAMPLES
from tests.support.servers.heap_pages import load_values, output_texts, stored_values
from tests.support.servers.postgres import Cluster, cluster_of
from tests.support.servers.servers import PIP_FOLDERS, pip_server
from tidemark.decode.types.registry import column_codec


@pytest.fixture(scope="module", params=PIP_FOLDERS)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with cluster_of(pip_server(request.param)) as made:
        yield made


@pytest.fixture(scope="module")
def session(cluster: Cluster) -> Iterator[psycopg.Connection[TupleRow]]:
    with cluster.connect() as opened:
        opened.prepare_threshold = None  # the table changes its types under equal statements
        opened.execute("CREATE EXTENSION vector")
        yield opened


@pytest.mark.feature("P12")
@pytest.mark.parametrize("declaration", VECTOR_SAMPLES)
def test_vectors_equal_the_servers_output_function(
    cluster: Cluster, session: psycopg.Connection[TupleRow], declaration: str
) -> None:
    load_values(session, "one_type", declaration, [*VECTOR_SAMPLES[declaration], None])
    column, datums = stored_values(cluster.data, session, "one_type")
    codec = column_codec(column)
    expected = output_texts(session, "one_type")
    assert [codec.text(datum) if isinstance(datum, bytes) else datum for datum in datums] == expected
    from_disk = [codec.arrow_value(datum) if isinstance(datum, bytes) else None for datum in datums]
    from_text = [codec.parse_text(text) if text is not None else None for text in expected]
    assert pa.array(from_disk, codec.arrow_type).equals(pa.array(from_text, codec.arrow_type))
