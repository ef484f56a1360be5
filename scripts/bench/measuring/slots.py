"""Logical replication slots: the options of the plugins, and a copy of a slot for one trial."""

from collections.abc import Iterator
from contextlib import contextmanager

from scripts.bench.measuring.workloads import PUBLICATION
from tests.support.servers.postgres import Session, sql

PLUGIN_OPTIONS: dict[str, tuple[str, ...]] = {
    "pgoutput": ("proto_version=1", f"publication_names={PUBLICATION}"),
    "test_decoding": ("include-xids=1", "skip-empty-xacts=1", "include-timestamp=0"),
}


@contextmanager
def copied_slot(session: Session, source: str, slot: str) -> Iterator[None]:
    """Create a copy of a slot; drop it at the end."""
    sql(session, f"SELECT pg_copy_logical_replication_slot('{source}', '{slot}')")
    try:
        yield
    finally:
        sql(session, f"SELECT pg_drop_replication_slot('{slot}')")
