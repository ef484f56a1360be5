"""The catalog of a lake of Iceberg tables: an SQL catalog in SQLite, in the lake's folder.

    <lake>/catalog.db    <lake>/<database>/<schema>/<table>/{data,metadata}    <lake>/<database>/messages/...

SQLite syncs its commits, and the files of the tables are synced before (`synced_files`).
"""

from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog

from tidemark.pipeline.iceberg.synced_files import SyncedFileIO
from tidemark.pipeline.lake.lake_kind import CATALOG_FILE

CATALOG = "tidemark"  # name inside of the file


def open_catalog(root: str) -> SqlCatalog:
    """Open the catalog of the lake in the folder `root`; create it if there is none."""
    folder = Path(root).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    file_io = f"{SyncedFileIO.__module__}.{SyncedFileIO.__qualname__}"
    properties = {"uri": f"sqlite:///{folder / CATALOG_FILE}", "warehouse": str(folder), "py-io-impl": file_io}
    return SqlCatalog(CATALOG, **properties)
