"""Compares the mirror's rows with the server's: each row of each tracked catalog, at its TID, in its fixed columns."""

import struct
from collections.abc import Iterator

from tests.support.servers.postgres import Cluster, sql
from tidemark.decode.catalog.layout import LOCAL_CATALOGS, PG_DATABASE
from tidemark.decode.catalog.mirror import CatalogMirror

REGPROC = 24  # printed by name, stored as an OID

CatalogRows = dict[str, dict[str, dict[str, str]]]
"""By catalog, then ctid: columns as text."""


def server_catalogs(cluster: Cluster, database: str, mirror: CatalogMirror) -> CatalogRows:
    """Return the rows of the tracked catalogs by SQL, under one snapshot."""
    found: CatalogRows = {}
    with cluster.connect(database, autocommit=False) as session:
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        for catalog in (*LOCAL_CATALOGS, PG_DATABASE):
            store = mirror.shared.store if catalog is PG_DATABASE else mirror.store
            columns = store.heap(catalog).layout.fixed
            names = [column.name for column in columns]
            casts = ["::oid" if column.type_oid == REGPROC else "" for column in columns]
            selected = ", ".join(f'"{name}"{cast}::text' for name, cast in zip(names, casts, strict=True))
            where = " WHERE attnum > 0" if catalog.name == "pg_attribute" else ""
            rows = sql(session, f"SELECT ctid::text, {selected} FROM pg_catalog.{catalog.name}{where}")
            found[catalog.name] = {str(ctid): dict(zip(names, map(str, values), strict=True)) for ctid, *values in rows}
    return found


def catalog_differences(mirror: CatalogMirror, expected: CatalogRows) -> Iterator[str]:
    """Yield the differences between the mirror and the server."""
    for name, rows in expected.items():
        mirrored = {str(row.pop("ctid")): row for row in map(dict, mirror.rows(name))}
        for ctid in rows.keys() - mirrored.keys():
            yield f"{name} {ctid}: missing in the mirror: {rows[ctid]}"
        for ctid in mirrored.keys() - rows.keys():
            yield f"{name} {ctid}: only in the mirror: {mirrored[ctid]}"
        for ctid in rows.keys() & mirrored.keys():
            for column, value in rows[ctid].items():
                if not _same(mirrored[ctid][column], value):
                    yield f"{name} {ctid}.{column}: server {value!r}, mirror {mirrored[ctid][column]!r}"


def _same(mirrored: object, text: str) -> bool:
    if isinstance(mirrored, bool):
        return text == ("true" if mirrored else "false")
    if isinstance(mirrored, float):
        return struct.pack("<f", mirrored) == struct.pack("<f", float(text))
    return str(mirrored) == text
