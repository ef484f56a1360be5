"""PostGIS's types compared with PostGIS, where Debian's postgresql-15-postgis-3 is installed; elsewhere with a record.

`recorded` writes tests/unit/decode_types/postgis.json: for each sample the stored bytes and the text.
"""

import json
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import TupleRow

from tests.support.oracles.postgis import need_postgis
from tests.support.samples.extension_samples import POSTGIS_SAMPLES
from tests.support.servers.heap_pages import load_values, output_texts, stored_values
from tests.support.servers.postgres import Cluster
from tidemark.decode.types.registry import column_codec

RECORD = Path(__file__).parents[2] / "unit" / "decode_types" / "postgis.json"


@pytest.fixture(scope="module")
def session(cluster: Cluster, session: psycopg.Connection[TupleRow]) -> psycopg.Connection[TupleRow]:
    need_postgis(cluster)
    session.execute("CREATE EXTENSION postgis")
    return session


@pytest.mark.feature("P12")
@pytest.mark.parametrize("declaration", POSTGIS_SAMPLES)
def test_geometries_equal_the_servers_output_function(
    cluster: Cluster, session: psycopg.Connection[TupleRow], declaration: str
) -> None:
    load_values(session, "one_type", declaration, [*POSTGIS_SAMPLES[declaration], None])
    column, datums = stored_values(cluster.data, session, "one_type")
    codec = column_codec(column)
    expected = output_texts(session, "one_type")
    assert [codec.text(datum) if isinstance(datum, bytes) else datum for datum in datums] == expected
    from_disk = [codec.arrow_value(datum) for datum in datums if isinstance(datum, bytes)]
    assert from_disk == [codec.parse_text(text) for text in expected if text is not None]


def test_what_is_recorded_is_what_the_server_has(cluster: Cluster, session: psycopg.Connection[TupleRow]) -> None:
    assert json.loads(RECORD.read_text()) == recorded(cluster, session)


def recorded(cluster: Cluster, session: psycopg.Connection[TupleRow]) -> dict[str, list[str | None]]:
    """Return stored bytes and text of the samples of `geometry`."""
    samples = POSTGIS_SAMPLES["geometry"]
    load_values(session, "one_type", "geometry", samples)
    _, datums = stored_values(cluster.data, session, "one_type")
    texts = output_texts(session, "one_type")
    stored = [datum.hex() if isinstance(datum, bytes) else None for datum in datums]
    return {sample: [raw, text] for sample, raw, text in zip(samples, stored, texts, strict=True)}
