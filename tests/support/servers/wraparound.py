"""A cluster whose xids are about to wrap around to 3: a real one reaches this after 4,000 million transactions."""

import os

from tests.support.servers.postgres import Cluster

XIDS = 1 << 32
CLOG_SEGMENT_XIDS = 1 << 20  # xids in a file of pg_xact: 32 pages of 8 kB, four xids a byte
CLOG_SEGMENT_BYTES = 32 * 8192


def move_to(node: Cluster, left: int) -> None:
    """Stop a cluster, move its next xid to `left` before the wraparound, and start it; everything is frozen before.

    NB: autovacuum must be off, because the ages of tables are invalid afterwards.
    """
    databases = [str(name) for (name,) in node.sql("SELECT datname FROM pg_database WHERE datallowconn")]
    for database in databases:
        node.sql("VACUUM (FREEZE)", database)
    node.stop()
    next_xid = XIDS - left
    segment = node.data / "pg_xact" / f"{next_xid // CLOG_SEGMENT_XIDS:04X}"
    segment.write_bytes(bytes(CLOG_SEGMENT_BYTES))
    segment.chmod(0o600)
    owner = (node.data / "PG_VERSION").stat()
    os.chown(segment, owner.st_uid, owner.st_gid)
    oldest = next_xid - 100_000_000
    node.run(node.server.program("pg_resetwal"), "-D", str(node.data), "-x", str(next_xid), "-u", str(oldest))
    node.start()


def use_up(node: Cluster, database: str, xids: int) -> None:
    """Consume xids, one transaction each."""
    with node.connect(database) as session:
        for _ in range(xids):
            session.execute("SELECT pg_current_xact_id()")


def full_xid(node: Cluster) -> int:
    """Return a new 64-bit xid."""
    ((xid,),) = node.sql("SELECT pg_current_xact_id()::text::int8")
    return int(xid)
