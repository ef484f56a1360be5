"""A catalog base of a real server, reduced to its tables, and the WAL of some sessions after it.

python -m tests.support.forged.byte_targets.small_base     writes both into tests/corpus, from a temporary server
"""

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.support.oracles.catalogs import Observed, flush_lsn, observe
from tests.support.servers.postgres import new_cluster
from tidemark.decode.catalog.databases import DatabaseMirrors
from tidemark.decode.catalog.history import Base, dump_base
from tidemark.decode.catalog.layout import PG_ATTRIBUTE, PG_CLASS, PG_INDEX, PG_TYPE, data_at
from tidemark.model.lsn import FIRST_USER_OID, FullXid, Lsn, Oid, SystemIdentifier, TimelineId
from tidemark.wal.record import Record

CORPUS = Path(__file__).parents[3] / "corpus"
BASE = CORPUS / "catalog.base"
WAL = CORPUS / "catalog.wal"
MAJOR = 15
NEXT_XID = FullXid(700)
FIRST_GENBKI_OID = 10000  # larger OIDs: views, information_schema, and row types
KINDS_KEPT = (b"r", b"t")  # pg_class.relkind
ITEM = struct.Struct("<HIBB")  # length of the part after the record's header; xid, info, rmgr
MADE = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE TABLE account (id bigint PRIMARY KEY, note text, feels mood)",
    "CREATE TABLE wide (id int, texts text[], note text)",
    "ALTER TABLE wide REPLICA IDENTITY FULL",
)
SESSIONS = {
    "rows": (
        (
            "BEGIN; INSERT INTO account VALUES (1, 'one', 'ok'), (2, 'two', NULL); UPDATE account SET note = 'x'; "
            "SAVEPOINT a; DELETE FROM account; ROLLBACK TO a; COMMIT"
        ),
        "INSERT INTO wide SELECT n, ARRAY['a', NULL], repeat('pglz', 700) FROM generate_series(1, 4) n",
        "DELETE FROM wide WHERE id < 3",
    ),
    "toast_and_messages": (
        "INSERT INTO wide SELECT 1, NULL, string_agg(md5(n::text), '') FROM generate_series(1, 90) n",
        "SELECT pg_logical_emit_message(true, 'app', 'content')",
        "SELECT pg_logical_emit_message(false, 'app', 'content')",
        "INSERT INTO account VALUES (7, 'n') ON CONFLICT (id) DO NOTHING",
    ),
    "two_phase": ("BEGIN; INSERT INTO account VALUES (9); PREPARE TRANSACTION 'gid'", "COMMIT PREPARED 'gid'"),
    "ddl": (
        "BEGIN; ALTER TABLE account ADD COLUMN more int DEFAULT 7; INSERT INTO account VALUES (3, 'c', 'sad'); COMMIT",
        "ALTER TYPE mood ADD VALUE 'fine'",
        "ALTER TABLE account ALTER COLUMN more TYPE bigint",
        "TRUNCATE account, wide",
    ),
}


def packed_records(records: Iterable[Record]) -> bytes:
    """Return records in the form that the target `decode` reads."""
    parts = [(record.raw[24:], record.xid, record.info, record.rmgr) for record in records]
    return b"".join(ITEM.pack(len(rest), xid, info, rmgr) + rest for rest, xid, info, rmgr in parts)


def sessions() -> Iterator[tuple[str, bytes]]:
    """Return the WAL of each session, by its name."""
    content = WAL.read_bytes()
    at = 0
    for name in SESSIONS:
        (size,) = struct.unpack_from("<I", content, at)
        yield name, content[at + 4 : at + 4 + size]
        at += 4 + size


def _cut_down(observed: Observed) -> None:
    """Remove everything that describes neither a table nor a part of a table."""
    store = observed.mirror.store
    classes = store.heap(PG_CLASS)
    reader = classes.layout.projection("oid", "relkind")
    kinds = dict(reader.unpack_from(packed, data_at(packed)) for packed in classes.rows.values() if packed)
    for heap in (store.heap(PG_CLASS), store.heap(PG_ATTRIBUTE), store.heap(PG_INDEX), store.heap(PG_TYPE)):
        for tid, packed in list(heap.rows.items()):
            subject = heap.subject(packed) if packed else Oid(0)
            kept = subject < FIRST_GENBKI_OID and kinds.get(subject, KINDS_KEPT[0]) in KINDS_KEPT
            if packed and not (kept or subject >= FIRST_USER_OID):
                del heap.rows[tid]


def _small_base(observed: Observed, lsn: Lsn) -> bytes:
    mirror = observed.mirror
    _cut_down(observed)
    system = SystemIdentifier(7)
    return dump_base(Base(system, TimelineId(1), lsn, MAJOR, NEXT_XID, DatabaseMirrors([mirror])))


def main() -> None:
    """Write base and WAL."""
    CORPUS.mkdir(exist_ok=True)
    with new_cluster(MAJOR, {"autovacuum": "off", "max_prepared_transactions": 4}) as cluster:
        for statement in MADE:
            cluster.sql(statement)
        cluster.sql("VACUUM FREEZE")
        observed = observe(cluster)
        with cluster.connect() as session:
            start = flush_lsn(session)
            observed.follow(start)
            BASE.write_bytes(_small_base(observed, start))
            parts = []
            for statements in SESSIONS.values():
                for statement in statements:
                    session.execute(statement.encode())
                found = packed_records(observed.wal.read(flush_lsn(session)))
                parts.append(struct.pack("<I", len(found)) + found)
        WAL.write_bytes(b"".join(parts))


if __name__ == "__main__":
    main()
