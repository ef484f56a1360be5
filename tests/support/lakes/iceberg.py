"""A lake of Iceberg tables in a folder, fed without Spark, and read by programs that Tidemark did not write."""

import time
from collections.abc import Mapping
from pathlib import Path

import duckdb
import duckdb_extension_avro  # type: ignore[import-untyped]
import duckdb_extension_iceberg  # type: ignore[import-untyped]
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from tests.support.lakes.lakes import IDENTITY
from tidemark.pipeline.iceberg.catalog import CATALOG, catalog_uri, table_name
from tidemark.pipeline.iceberg.expiry import SnapshotExpiry
from tidemark.pipeline.iceberg.iceberg_lake import IcebergLake
from tidemark.pipeline.lake.layout import shape_of

KEEP_S = 3600.0
_EXTENSIONS = (duckdb_extension_avro, duckdb_extension_iceberg)


def iceberg_lake(root: Path, keep_s: float = KEEP_S, snapshots_max: int = 40) -> IcebergLake:
    """Open the lake in the folder `root`."""
    return IcebergLake(str(root), IDENTITY, shape_of, {}, SnapshotExpiry(keep_s, time.time, snapshots_max))


def iceberg_table(root: Path, folder: str) -> Table:
    """Open a table as another program does, by the catalog of the lake."""
    catalog = SqlCatalog(CATALOG, uri=catalog_uri(str(root)), warehouse=str(root))
    return catalog.load_table(table_name(folder))


def iceberg_rows(root: Path, folder: str) -> list[dict[str, object]]:
    """Return a log's rows in stream order, read by pyiceberg."""
    return _in_order(iceberg_table(root, folder).scan().to_arrow().to_pylist())


def duckdb_rows(root: Path, folder: str) -> list[dict[str, object]]:
    """Return a log's rows in stream order, read by DuckDB from the table's metadata."""
    location = iceberg_table(root, folder).metadata_location
    with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as connection:
        for package in _EXTENSIONS:
            assert package.__file__ is not None
            (extension,) = Path(package.__file__).parent.rglob("*.duckdb_extension")
            connection.execute(f"LOAD '{extension}'")
        found = connection.execute("SELECT * FROM iceberg_scan(?)", [location]).to_arrow_table()
    return _in_order(found.to_pylist())


def _in_order(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(rows, key=lambda row: [int(str(row[name])) for name in ("_tli", "_commit_lsn", "_ordinal")])


def without_types(row: Mapping[str, object]) -> dict[str, str]:
    """Return the values of a log's row as text, without NULL, those from before a change of type under their column.

    A log of Delta tables converts such values; a log of Iceberg tables keeps them in a column named by their type.
    """
    found: dict[str, str] = {}
    for name, value in row.items():
        if name == "_old" and isinstance(value, dict):
            found.update({f"_old.{inner}": text for inner, text in without_types(value).items()})
        elif value is not None and name != "_seq":
            found[name.split("__")[0]] = str(value)
    return found
