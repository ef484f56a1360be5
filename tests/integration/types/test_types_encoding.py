"""Databases in other encodings: the bytes on disk differ, the output does not."""

import pytest

from tests.support.forged.spans import inserts
from tests.support.servers.heap_pages import describe_relation, load_values, output_texts, packed_tuples, stored_values
from tests.support.servers.postgres import Cluster
from tidemark.decode.arrow.batches import BatchBuilder
from tidemark.decode.types.codec import Dialect
from tidemark.decode.types.encodings import PYTHON_ENCODINGS
from tidemark.decode.types.registry import column_codec
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
def test_text_is_emitted_in_utf8(cluster: Cluster, encoding: str, declaration: str) -> None:
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


TRIED = """
CREATE FUNCTION tried(raw bytea, encoding name) RETURNS text LANGUAGE plpgsql AS
$$ BEGIN RETURN convert_from(raw, encoding); EXCEPTION WHEN OTHERS THEN RETURN NULL; END $$
"""
LEADING = range(0x80, 0x100)
TRAILING = range(0xA1, 0xFF)
SINGLE = [bytes([one]) for one in LEADING]
SEQUENCES = [
    *SINGLE,
    *(bytes([one, two]) for one in LEADING for two in TRAILING),
    *(bytes([0x8F, two, three]) for two in TRAILING for three in TRAILING),
]


@pytest.mark.parametrize("encoding", sorted(PYTHON_ENCODINGS.keys() - {"UTF8", "SQL_ASCII"}))
def test_every_character_reads_as_the_server_reads_it(cluster: Cluster, encoding: str) -> None:
    sequences = SEQUENCES if encoding.startswith("EUC") else SINGLE
    with cluster.connect() as session, session.transaction(force_rollback=True):
        session.execute(TRIED)
        rows = session.execute(
            "SELECT tried(raw, %s) FROM unnest(%s::bytea[]) WITH ORDINALITY AS every(raw, n) ORDER BY n",
            [encoding, sequences],
        ).fetchall()
    dialect = Dialect.of(encoding, cluster.major)
    known = [(raw, text) for raw, (text,) in zip(sequences, rows, strict=True) if text is not None]
    assert len(known) > 80
    assert [(raw, dialect.decode(raw)) for raw, _ in known] == known
    whole = b" ".join(raw for raw, _ in known)
    assert dialect.decode(whole) == " ".join(text for _, text in known)


@pytest.mark.parametrize("declaration", ["text", "name", "text[]", "character varying(20)", "character(9)"])
def test_bytes_that_are_no_text_stay_in_the_text_form_and_are_replaced_in_arrow(
    cluster: Cluster, declaration: str
) -> None:
    database = "encoded_sql_ascii"
    if not cluster.sql(f"SELECT 1 FROM pg_database WHERE datname = '{database}'"):
        cluster.sql(f"CREATE DATABASE {database} ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    raw = b"a\xff\xc3b\xe2\x82"
    with cluster.connect(database) as session:
        session.execute("SET client_encoding = 'SQL_ASCII'")
        session.execute("DROP TABLE IF EXISTS invalid")
        session.execute(f"CREATE TABLE invalid (number serial, value {declaration})".encode())
        literal = b"ARRAY['" + raw + b"']" if declaration == "text[]" else b"'" + raw + b"'"
        session.execute(b"INSERT INTO invalid (value) VALUES (" + literal + b")")
        session.execute("SET client_encoding = 'UTF8'")  # nothing is converted; psycopg returns text again
        column, (payload,) = stored_values(cluster.data, session, "invalid")
        relation = describe_relation(session, "invalid")
        packed = packed_tuples(cluster.data, session, "invalid")
    dialect = Dialect.of("SQL_ASCII", cluster.major)
    assert isinstance(payload, bytes)
    text = column_codec(column, dialect).text(payload)
    assert raw in text.encode("utf-8", "surrogateescape")
    (batch,) = BatchBuilder(Oid(1), relation, dialect).build(inserts(packed))
    (row,) = batch.rows.column("_after").to_pylist()
    replaced = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    assert row["value"] == ([replaced.strip("{}")] if declaration == "text[]" else replaced)
