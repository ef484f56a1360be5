"""Compares a mirror with a real server: seeded by SQL, fed with its WAL files, compared with SQL row by row."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import psycopg
from psycopg.rows import TupleRow

from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster, sql
from tidemark.decode.catalog.databases import DatabaseMirrors, every_database
from tidemark.decode.catalog.follower import CatalogFollower
from tidemark.decode.catalog.layout import CATALOG_OF_NAME, PG_ATTRIBUTE
from tidemark.decode.catalog.mirror import CatalogMirror, CatalogValue
from tidemark.decode.catalog.seeding import seed
from tidemark.decode.catalog.shared import SharedCatalogs
from tidemark.model.lsn import Lsn, Oid, Xid, parse_lsn
from tidemark.wal.page import Framer, Invalid, RecordBlock
from tidemark.wal.record import Record
from tidemark.wal.segments import segment_name, segment_of
from tidemark.wal.versions import PAGE_BYTES, wal_format

WAIT_S = 120
MARK = "mirror-test"


class WalFiles:
    """The records of a running server, from its pg_wal, in order."""

    def __init__(self, cluster: Cluster, start: Lsn) -> None:
        self._cluster = cluster
        self._segment_bytes = 16 << 20
        self._fed = start - start % PAGE_BYTES
        self._framer = Framer(wal_format(cluster.major), segment_bytes=self._segment_bytes, start_lsn=start)

    def read(self, until: Lsn) -> Iterator[Record]:
        """Yield the records that are complete below `until`, which is flushed."""
        while self._fed < until:
            segment = segment_of(self._fed, self._segment_bytes)
            begin = self._fed % self._segment_bytes
            end = min(until - segment * self._segment_bytes, self._segment_bytes)
            path = self._cluster.data / "pg_wal" / segment_name(1, segment, self._segment_bytes)
            with path.open("rb") as handle:
                handle.seek(begin)
                data = handle.read(end - begin)
            assert len(data) == end - begin, path
            self._framer.feed(Lsn(self._fed), data)
            self._fed += len(data)
            yield from self._records()

    def _records(self) -> Iterator[Record]:
        while isinstance(block := self._framer.next_block(), RecordBlock):
            yield from block.records()
        assert not isinstance(block, Invalid), str(block)


def flush_lsn(session: psycopg.Connection[TupleRow]) -> Lsn:
    return parse_lsn(sql(session, "SELECT pg_current_wal_flush_lsn()")[0][0])


def copy_out(session: psycopg.Connection[TupleRow], query: seed.SeedQuery) -> list[bytes]:
    """Return the result of a seed's query."""
    with session.cursor().copy(query.copy) as copy:
        return [bytes(chunk) for chunk in copy]


@dataclass
class Observed:
    """A database and its mirror."""

    cluster: Cluster
    database: str
    mirror: CatalogMirror
    follower: CatalogFollower
    wal: WalFiles

    def catch_up(self) -> None:
        """Follow until everything before this call is in the mirror, RUNNING_XACTS included."""
        with self.cluster.connect(self.database) as session:
            sql(session, "CHECKPOINT")  # logs RUNNING_XACTS
            sql(session, f"SELECT pg_logical_emit_message(true, '{MARK}', '')")
            until = flush_lsn(session)
        self.follow(until)

    def follow(self, until: Lsn) -> None:
        for record in self.wal.read(until):
            self.follower.follow(record)


def observe(
    cluster: Cluster, database: str = "postgres", *, user: str = "postgres", shared: SharedCatalogs | None = None
) -> Observed:
    """Seed a mirror as the product does it, under concurrent writes."""
    fmt = wal_format(cluster.major)
    with cluster.connect(database, user) as session:
        redo, next_xid = sql(session, "SELECT redo_lsn, next_xid FROM pg_control_checkpoint()")[0]
        start = parse_lsn(redo)
        oid, tablespace, encoding = sql(session, seed.IDENTITY)[0]
        columns = [_column_row(row) for row in sql(session, seed.COLUMNS)]
        identity = seed.DatabaseIdentity(Oid(oid), Oid(tablespace), encoding)
        older_than = Xid(int(str(next_xid).split(":")[1]))
        files, files_lsn = _files_at(session)
        mirror = seed.begin(fmt, identity, columns, files, next_xid=older_than, files_lsn=files_lsn, shared=shared)
        _wait_for_older(session, older_than)
        for statement in seed.SESSION:
            sql(session, statement)
        sql(session, "BEGIN ISOLATION LEVEL REPEATABLE READ")
        answers = {query: copy_out(session, query) for query in seed.queries(mirror)}
        sql(session, "COMMIT")
        sql(session, "SET synchronous_commit = on")
        sql(session, f"SELECT pg_logical_emit_message(true, '{MARK}', '')")  # flushes the WAL of all that SQL has read
        end = flush_lsn(session)
        observed = Observed(
            cluster,
            database,
            mirror,
            CatalogFollower(fmt, mirrors := DatabaseMirrors([mirror])),
            WalFiles(cluster, start),
        )
        observed.follow(end)
        seed.merge(mirror, answers)
        mirrors.select(every_database)
    return observed


def _files_at(session: psycopg.Connection[TupleRow]) -> tuple[list[tuple[int, int]], Lsn]:
    """Return the catalogs' files, and an LSN at which they were current."""
    while True:
        before = _files(session)
        lsn = parse_lsn(sql(session, "SELECT pg_current_wal_insert_lsn()")[0][0])
        if _files(session) == before:
            return before, lsn


def _files(session: psycopg.Connection[TupleRow]) -> list[tuple[int, int]]:
    return [(int(oid), int(relfilenode)) for oid, relfilenode in sql(session, seed.FILES)]


def _column_row(row: TupleRow) -> seed.ColumnRow:
    catalog, number, name, type_oid, length, align, not_null = row
    return catalog, number, name, type_oid, length, align, not_null


def _wait_for_older(session: psycopg.Connection[TupleRow], next_xid: int) -> None:
    wanted = f"SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8 & 4294967295 >= {next_xid}"
    wait_until(lambda: bool(sql(session, wanted)[0][0]), "the end of older transactions", within_s=WAIT_S)


def play(observed: Observed, steps: tuple[str, ...], *, checkpoint_every: int = 0) -> None:
    """Run the steps of a DDL script, with a checkpoint after every statement of each n-th step.

    The session has ended: the server drops its temporary tables after the client has left.
    """
    with observed.cluster.connect(observed.database) as session:
        backend = f"SELECT 1 FROM pg_stat_activity WHERE pid = {session.info.backend_pid}"
        for number, step in enumerate(steps):
            for statement in step.split("; ") if step.startswith("BEGIN") else [step]:
                sql(session, statement)
                if checkpoint_every and number % checkpoint_every == 0:
                    with observed.cluster.connect() as other:
                        sql(other, "CHECKPOINT")
    wait_until(lambda: not observed.cluster.sql(backend), "the end of the session")


Rows = dict[str, dict[str, CatalogValue]]


def sql_rows(cluster: Cluster, database: str, mirror: CatalogMirror, catalog_name: str) -> Rows:
    """Return the rows of a catalog by ctid, by SQL."""
    catalog = CATALOG_OF_NAME[catalog_name]
    heaps = mirror.store.heaps | mirror.shared.store.heaps
    names = [column.name for column in heaps[catalog.oid].layout.fixed]
    selected = ", ".join(f"{name}::text" if _is_text(name) else _as_number(name) for name in names)
    where = "WHERE attnum > 0" if catalog is PG_ATTRIBUTE else ""
    with cluster.connect(database) as session:
        found = sql(session, f"SELECT ctid::text, {selected} FROM pg_catalog.{catalog_name} {where}")
    return {row[0]: {"ctid": row[0], **dict(zip(names, row[1:], strict=True))} for row in found}


_CHARS = {"attalign", "attstorage", "attcompression", "attidentity", "attgenerated", "relpersistence", "relkind"}
_CHARS |= {"relreplident", "typtype", "typcategory", "typdelim", "typalign", "typstorage", "datlocprovider"}


def _is_text(column: str) -> bool:
    return column in _CHARS or column.endswith(("name", "label"))


_REGPROCS = {"typinput", "typoutput", "typreceive", "typsend", "typmodin", "typmodout", "typanalyze", "typsubscript"}
_REGPROCS |= {"rngcanonical", "rngsubdiff"}
_XIDS = {"relfrozenxid", "relminmxid", "datfrozenxid", "datminmxid"}


def _as_number(column: str) -> str:
    if column in _REGPROCS:
        return f"{column}::oid::int8"
    if column in _XIDS:
        return f"{column}::text::int8"
    return column


def differences(observed: Observed, names: Iterable[str] = tuple(CATALOG_OF_NAME)) -> list[str]:
    """Return the differences between mirror and server as text; the server must be idle."""
    found: list[str] = []
    for name in names:
        expected = sql_rows(observed.cluster, observed.database, observed.mirror, name)
        actual = {str(row["ctid"]): row for row in observed.mirror.rows(name)}
        found += [
            f"{name}{ctid}: server {expected.get(ctid)}, mirror {actual.get(ctid)}"
            for ctid in sorted(expected.keys() | actual.keys())
            if expected.get(ctid) != actual.get(ctid)
        ]
    return found


DESCRIBED = """
    SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text, c.relreplident::text,
      c.reltoastrelid::int8,
      coalesce((SELECT inhparent::int8 FROM pg_inherits WHERE inhrelid = c.oid AND c.relispartition), 0),
      (SELECT array_agg(k ORDER BY o) FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY AS u (k, o)
        WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate),
      (SELECT array_agg(k ORDER BY o) FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY AS u (k, o)
        WHERE i.indexrelid = pg_get_replica_identity_index(c.oid) AND o <= i.indnkeyatts)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'm') AND c.oid >= 16384 ORDER BY c.oid
"""
DESCRIBED_COLUMNS = """
    SELECT a.attrelid::int8, a.attnum, a.attname::text,
      CASE WHEN attisdropped THEN NULL ELSE format_type(atttypid, NULL) END, a.atttypmod,
      a.attlen, a.attbyval, a.attalign::text, a.attnotnull, a.attisdropped, a.attgenerated::text, a.atthasmissing
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    WHERE c.relkind IN ('r', 'p', 'm') AND c.oid >= 16384 AND a.attnum > 0 ORDER BY 1, 2
"""
DESCRIBED_LABELS = """
    SELECT enumtypid::int8, array_agg(enumlabel::text ORDER BY enumsortorder) FROM pg_enum GROUP BY enumtypid ORDER BY 1
"""


def description_differences(observed: Observed) -> list[str]:
    """Return the differences between our descriptions and the server's, as text."""
    replica_index = """
        CREATE OR REPLACE FUNCTION pg_temp.pg_get_replica_identity_index(r regclass) RETURNS regclass LANGUAGE sql AS $$
          SELECT i.indexrelid::regclass FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
          WHERE c.oid = r AND i.indimmediate
            AND (c.relreplident = 'd' AND i.indisprimary OR c.relreplident = 'i' AND i.indisreplident) $$
    """
    with observed.cluster.connect(observed.database) as session:
        sql(session, replica_index)
        relations = sql(session, DESCRIBED.replace("pg_get_replica", "pg_temp.pg_get_replica"))
        columns = sql(session, DESCRIBED_COLUMNS)
        labels = sql(session, DESCRIBED_LABELS)
    mirror = observed.mirror
    described = list(mirror.relations())
    own = [
        (
            *(relation.oid, relation.namespace, relation.name, relation.kind, relation.persistence),
            *(relation.replica_identity.value, relation.toast_oid, relation.partition_of),
            list(relation.primary_key) or None,
            list(relation.identity_columns) or None,
        )
        for relation in described
    ]
    own_columns = [
        (
            *(relation.oid, column.number, column.name, column.type.display_name if column.type else None),
            *(column.typmod, column.length, column.by_value, column.align.value, column.not_null, column.dropped),
            *(column.generated, column.missing is not None),
        )
        for relation in described
        for column in relation.columns
    ]
    own_labels = []
    for oid, _labels in labels:
        enum = mirror.type(Oid(oid))
        own_labels.append((oid, [label.label for label in enum.labels] if enum else None))
    return [
        *_unequal(relations, own),
        *_unequal(columns, own_columns),
        *_unequal(labels, own_labels),
    ]


def _unequal(server: Sequence[object], mirrored: Sequence[object]) -> list[str]:
    pairs = zip_longest(server, mirrored)
    return [f"server {expected}, mirror {actual}" for expected, actual in pairs if expected != actual]
