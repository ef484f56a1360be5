"""The catalog of a lake of Iceberg tables: an SQL catalog in SQLite, in the lake's folder.

    <lake>/catalog.db    <lake>/<database>/<schema>/<table>/{data,metadata}    <lake>/<database>/messages/...

SQLite syncs its commits, and the files of the tables are synced before (`synced_files`).
"""

from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import URL

from tidemark.pipeline.iceberg.synced_files import SyncedFileIO
from tidemark.pipeline.iceberg.translated import translated
from tidemark.pipeline.lake.lake_kind import CATALOG_FILE

CATALOG = "tidemark"  # name inside of the file
LOCK_WAIT_S = 60  # for another program that writes to the catalog


def open_catalog(root: str) -> SqlCatalog:
    """Open the catalog of the lake in the folder `root`; create it if there is none."""
    folder = Path(root).absolute()
    with translated(f"the catalog of {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        return SqlCatalog(
            CATALOG,
            **{
                "uri": catalog_uri(root),
                "warehouse": str(folder),
                "py-io-impl": f"{SyncedFileIO.__module__}.{SyncedFileIO.__qualname__}",
            },
        )


def catalog_uri(root: str) -> str:
    """Return the address of the catalog for SQLAlchemy."""
    file = Path(root).absolute() / CATALOG_FILE
    return URL.create("sqlite", database=str(file), query={"timeout": str(LOCK_WAIT_S)}).render_as_string()


def table_name(folder: str) -> tuple[str, ...]:
    """Return the name in the catalog of the table in a folder below the lake's; the catalog joins names by dots."""
    return tuple(part.replace(".", "%2E") for part in folder.split("/"))
