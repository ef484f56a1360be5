"""Databases in other encodings: the bytes on disk differ, what comes out does not."""

import pytest

from tests.support.heap_pages import describe_relation, load_values, output_texts, packed_tuples, stored_values
from tests.support.postgres import Cluster
from tests.support.spans import inserts
from tidemark.decode.batches import BatchBuilder
from tidemark.decode.codecs.codec import Dialect
from tidemark.decode.codecs.registry import column_codec
from tidemark.model.lsn import Oid

TEXTS = {
    "LATIN1": "café ñ £",
    "LATIN9": "€ œ",
    "WIN1251": "привет",
    "KOI8R": "привет",
    "EUC_JP": "日本語",
    "EUC_KR": "한국어",
    "WIN1252": "“quoted” €",
    "SQL_ASCII": "anything ä",
}


@pytest.mark.parametrize("encoding", TEXTS)
@pytest.mark.parametrize("declaration", ["text", "name", "text[]", "jsonb"])
def test_text_comes_out_in_utf8(cluster: Cluster, encoding: str, declaration: str) -> None:
    database = f"encoded_{encoding.lower()}"
    if not cluster.sql(f"SELECT 1 FROM pg_database WHERE datname = '{database}'"):
        cluster.sql(f"CREATE DATABASE {database} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    text = TEXTS[encoding]
    value = {"text[]": f'{{"{text}",plain}}', "jsonb": f'"{text}"'}.get(declaration, text)
    with cluster.connect(database) as session:
        session.execute("SET client_encoding = 'UTF8'")
        load_values(session, "encoded", declaration, [value])
        column, (payload,) = stored_values(cluster.data, session, "encoded")
        relation = describe_relation(session, "encoded")
        packed = packed_tuples(cluster.data, session, "encoded")
        (expected,) = output_texts(session, "encoded")
    dialect = Dialect.of(encoding, cluster.major)
    assert isinstance(payload, bytes)
    assert column_codec(column, dialect).text(payload) == expected
    (batch,) = BatchBuilder(Oid(1), relation, dialect).build(inserts(packed))
    (row,) = batch.rows.column("_after").to_pylist()
    assert row["value"] == ([text, "plain"] if declaration == "text[]" else value)
