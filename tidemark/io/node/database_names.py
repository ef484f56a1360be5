"""The names of a node's databases."""

from collections.abc import Container

from tidemark.decode.catalog.layout import HALF_DROPPED
from tidemark.io.node.node import Node
from tidemark.model.lsn import Oid


def database_names(node: Node, databases: Container[Oid]) -> dict[Oid, str]:
    """Return the current names of the databases that exist; not those of an interrupted DROP DATABASE."""
    query = f"SELECT oid::int8, datname::text FROM pg_catalog.pg_database WHERE datconnlimit <> {HALF_DROPPED}"  # noqa: S608 - a constant of ours
    rows = node.query(query)
    return {Oid(oid): str(name) for oid, name in rows if oid in databases}
