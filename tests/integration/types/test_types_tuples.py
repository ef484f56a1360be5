"""Whole rows: missing values, dropped columns, NULLs, TOASTed values restored; by value and by column, against SQL."""

from dataclasses import replace

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import TupleRow

from tests.support.forged.spans import inserts
from tests.support.servers.heap_pages import describe_relation, packed_tuples
from tests.support.servers.postgres import Cluster
from tidemark.decode.arrow.batches import BatchBuilder
from tidemark.decode.datum.tuples import TupleLayout, deform, external_pointers, replace_external
from tidemark.decode.datum.varlena import plain_datum, reassembled_datum
from tidemark.decode.types.registry import column_codec
from tidemark.model.lsn import Oid
from tidemark.model.relation import Relation


def with_missing_values(cluster: Cluster, session: psycopg.Connection[TupleRow], relation: Relation) -> Relation:
    """Read attmissingval from pg_attribute's own pages."""
    catalog = describe_relation(session, "pg_attribute")
    layout = TupleLayout.of(catalog)
    index = {column.name: column.number - 1 for column in catalog.columns}
    found = {}
    for packed in packed_tuples(cluster.data, session, "pg_attribute"):
        row = deform(packed, layout)
        relid, number, missing = row[index["attrelid"]], row[index["attnum"]], row[index["attmissingval"]]
        if relid == relation.oid.to_bytes(4, "little") and isinstance(missing, bytes) and isinstance(number, bytes):
            found[int.from_bytes(number, "little")] = plain_datum(missing)
    columns = tuple(replace(column, missing=found.get(column.number)) for column in relation.columns)
    return replace(relation, columns=columns)


def texts_by_value(relation: Relation, packed: bytes) -> list[str | None]:
    values = deform(packed, TupleLayout.of(relation))
    texts: list[str | None] = []
    for column, value in zip(relation.columns, values, strict=True):
        if not column.dropped:
            texts.append(column_codec(column).text(value) if isinstance(value, bytes) else None)
    return texts


def texts_by_sql(session: psycopg.Connection[TupleRow], relation: Relation, order: str) -> list[list[str | None]]:
    columns = ", ".join(f"format('%%s', {c.name}), {c.name} IS NULL" for c in relation.live_columns)
    rows = session.execute(f"SELECT {columns} FROM {relation.name} ORDER BY {order}", []).fetchall()
    return [[None if row[at + 1] else row[at] for at in range(0, len(row), 2)] for row in rows]


def rows_by_column(relation: Relation, packed: list[bytes]) -> list[dict[str, object]]:
    (batch,) = BatchBuilder(Oid(1), relation).build(inserts(packed))
    batch.rows.validate(full=True)
    rows: list[dict[str, object]] = batch.rows.column("_after").to_pylist()
    return rows


DEFAULTS = {
    "i2": ("smallint", "7"),
    "i4": ("integer", "-5"),
    "i8": ("bigint", "1234567890123"),
    "truth": ("boolean", "true"),
    "real4": ("real", "1.5"),
    "money": ("numeric(10,2)", "12.34"),
    "wide": ("numeric", "1e50"),
    "short": ("text", "'missing'"),
    "long": ("text", f"'{'x' * 8000}'"),
    "bytes": ("bytea", "'\\x00ff'"),
    "day": ("date", "'2024-02-29'"),
    "instant": ("timestamptz", "'2024-02-29 12:00:00+00'"),
    "span": ("interval", "'1 day 2 hours'"),
    "id": ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
    "numbers": ("integer[]", "'{1,NULL,3}'"),
    "tree": ("jsonb", """'{"a": [1, 2]}'"""),
    "mood": ("mood", "'very happy'"),
    "good": ("positive", "5"),
    "net": ("inet", "'10.0.0.1/8'"),
    "blank": ("character(4)", "'ab'"),
    "nothing": ("text", "NULL"),
}


def test_missing_values_equal_sql_by_value_and_by_column(
    cluster: Cluster, session: psycopg.Connection[TupleRow]
) -> None:
    session.execute("CREATE TABLE older (number integer, gone text, kept text)")
    session.execute("INSERT INTO older SELECT n, 'gone', 'kept ' || n FROM generate_series(1, 3) n")
    session.execute("ALTER TABLE older DROP gone")
    for name, (declaration, default) in DEFAULTS.items():
        session.execute(f"ALTER TABLE older ADD {name} {declaration} DEFAULT {default}")
    session.execute("INSERT INTO older (number, kept, short) VALUES (4, NULL, NULL)")
    relation = with_missing_values(cluster, session, describe_relation(session, "older"))
    packed = packed_tuples(cluster.data, session, "older")
    expected = texts_by_sql(session, relation, "number")
    assert [texts_by_value(relation, one) for one in packed] == expected
    rows = rows_by_column(relation, packed)
    for column, codec in ((column, column_codec(column)) for column in relation.live_columns):
        at = relation.live_columns.index(column)
        parsed = [None if texts[at] is None else codec.parse_text(texts[at] or "") for texts in expected]
        made = BatchBuilder(Oid(1), relation).struct_type.field(column.name).type
        assert [row[column.name] for row in rows] == pa.array(parsed, made).to_pylist(), column.name


@pytest.mark.parametrize("compression", ["pglz", "lz4"])
@pytest.mark.parametrize("storage", ["EXTENDED", "EXTERNAL", "MAIN"])
def test_toasted_values_complete_the_row(
    cluster: Cluster, session: psycopg.Connection[TupleRow], compression: str, storage: str
) -> None:
    session.execute("DROP TABLE IF EXISTS toasted")
    session.execute(
        "CREATE TABLE toasted"
        ' (number integer, first text, flag boolean, second text, stamp bigint, third bytea, tail "char")'
    )
    for column in ("first", "second", "third"):
        session.execute(f"ALTER TABLE toasted ALTER {column} SET STORAGE {storage}")
        session.execute(f"ALTER TABLE toasted ALTER {column} SET COMPRESSION {compression}")
    session.execute(
        "INSERT INTO toasted SELECT n, repeat('compressible ', n * 700), n % 2 = 0, "
        "(SELECT string_agg(md5((n * 1000 + m)::text), '') FROM generate_series(1, n * 90) m), n * 10000000000, "
        "decode(repeat('00ff', n * 4000), 'hex'), 'z' FROM generate_series(1, 5) n"
    )
    session.execute("INSERT INTO toasted VALUES (6, 'short', NULL, NULL, 6, NULL, 'y')")
    relation = describe_relation(session, "toasted")
    layout = TupleLayout.of(relation)
    row = session.execute("SELECT reltoastrelid::regclass::text FROM pg_class WHERE relname = 'toasted'").fetchone()
    assert row is not None
    packed = packed_tuples(cluster.data, session, "toasted")
    whole = []
    for one in packed:
        datums = {}
        for index, pointer in external_pointers(one, layout):
            chunks = session.execute(
                f"SELECT chunk_data FROM {row[0]} WHERE chunk_id = %s ORDER BY chunk_seq", [pointer.value_id]
            )
            datums[index] = reassembled_datum(pointer, [chunk for (chunk,) in chunks])
        whole.append(replace_external(one, layout, datums))
    whole.sort(key=lambda one: deform(one, layout)[0] or b"")
    assert any(one != other for one, other in zip(packed, whole, strict=True)) or storage == "MAIN"
    expected = texts_by_sql(session, relation, "number")
    assert [texts_by_value(relation, one) for one in whole] == expected
    assert [row["second"] for row in rows_by_column(relation, whole)] == [texts[3] for texts in expected]


def test_columns_whose_value_is_not_available_are_marked_unchanged_and_null(
    cluster: Cluster, session: psycopg.Connection[TupleRow]
) -> None:
    session.execute("CREATE TABLE pointing (a integer, gone text, b text, c text, d text)")
    session.execute("ALTER TABLE pointing DROP gone")
    for column in "bcd":
        session.execute(f"ALTER TABLE pointing ALTER {column} SET STORAGE EXTERNAL")
    session.execute("INSERT INTO pointing VALUES (1, 'short', repeat('c', 9000), repeat('d', 9000))")
    session.execute("INSERT INTO pointing VALUES (2, 'b', 'c', NULL)")
    relation = describe_relation(session, "pointing")
    packed = packed_tuples(cluster.data, session, "pointing")
    (batch,) = BatchBuilder(Oid(1), relation).build(inserts(packed))
    assert batch.rows.column("_unchanged").to_pylist() == [bytes([0b1100]), None]
    assert batch.rows.column("_after").to_pylist() == [
        {"a": 1, "b": "short", "c": None, "d": None},
        {"a": 2, "b": "b", "c": "c", "d": None},
    ]
