"""Rows of a lake's tables in a form that is compared with those of another lake, or of the source."""

import json
from pathlib import Path

from tests.support.lakes.lakes import log_rows, replica_rows
from tests.support.processes.cdcctl import contents
from tests.support.servers.postgres import Cluster
from tidemark.pipeline.lake.report import OpenedLake


def values(row: object) -> object:
    """Return what a row has, apart from its place in an outbox: columns without a value depend on the others."""
    if not isinstance(row, dict):
        return row
    return {name: values(value) for name, value in row.items() if value is not None and name != "_seq"}


def rows_at_source(cluster: Cluster, database: str, table: str) -> list[object]:
    """Return the rows of a table by SQL."""
    found = cluster.sql(f"SELECT row_to_json(t)::text FROM {table} t", database)
    return sorted((values(json.loads(str(row))) for (row,) in found), key=repr)


def replica_of(lake: Path, table: str) -> list[object]:
    """Return the rows of a replica in the same form."""
    rows = replica_rows(lake, OpenedLake(str(lake)).find(f"public.{table}").folder)
    return sorted((values({**row, "tableoid": None}) for row in rows), key=repr)


def log_of(lake: Path, table: str) -> list[object]:
    """Return the rows of a log in stream order; of a table that the lake does not have, none."""
    found = [known for known in OpenedLake(str(lake)).tables if known.name == table]
    return [values(row) for known in found for row in log_rows(lake, known.folder)]


def without_lock(lake: Path) -> dict[str, bytes]:
    """Return the content of the files of a lake, apart from the lock."""
    return {name: content for name, content in contents(lake).items() if name != "_pipeline.lock"}
