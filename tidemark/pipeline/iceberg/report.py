"""What `cdcctl lake list` and `cdcctl lake check` print of a lake of Iceberg tables; nothing is written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from tidemark.model.errors import TidemarkError
from tidemark.model.lsn import INVALID_OID
from tidemark.pipeline.delta_log.damage import BATCH_ROWS
from tidemark.pipeline.failures import first_reason
from tidemark.pipeline.iceberg.catalog import open_catalog, table_name
from tidemark.pipeline.iceberg.positions import CatalogPositions, owner_of, snapshot_of
from tidemark.pipeline.iceberg.recorded_columns import check_columns
from tidemark.pipeline.iceberg.snapshot_summary import read_applied
from tidemark.pipeline.iceberg.translated import translated
from tidemark.pipeline.lake.folders import LOG, messages_app, table_app
from tidemark.pipeline.lake.positions.table_position import TablePosition, TableState
from tidemark.pipeline.lake.report import LakeReport, NoLake, table_summary


class OpenedCatalog:
    """The lake at `root`, read by its own record of its owner."""

    def __init__(self, root: str, catalog: SqlCatalog) -> None:
        self.root = root
        self.catalog = catalog
        owner = owner_of(catalog)
        if owner is None:
            raise NoLake(f"the catalog of {root} is not that of a lake: no pipeline has written to it")
        self.owner = owner
        self.positions = CatalogPositions(root, catalog, owner)
        self.tables = sorted(self.positions.tables.values(), key=lambda table: table.folder)


@contextmanager
def _opened(root: str) -> Iterator[OpenedCatalog]:
    catalog = open_catalog(root)
    try:
        yield OpenedCatalog(root, catalog)
    finally:
        catalog.close()


def listed(root: str) -> dict[str, LakeReport]:
    """Return all tables of a lake, with the position of the whole lake."""
    with _opened(root) as lake:
        applied = lake.positions.applied
        return {
            "lake": root,
            "capture": lake.owner.capture,
            "system_identifier": str(lake.owner.system_identifier),
            "position": str(applied.position),
            "sequence": applied.sequence,
            "outbox": lake.positions.outbox,
            "leaving": sorted(lake.positions.leaving),
            "tables": [table_summary(table, {LOG: snapshot_of(table)}) for table in lake.tables],
        }


def checked(root: str, *, reads_files: bool) -> dict[str, LakeReport]:
    """Return the faults of each table of the lake; with `reads_files` every data file is read."""
    tables: list[LakeReport] = []
    count = 0
    with _opened(root) as lake:
        for table in lake.tables:
            version = snapshot_of(table)
            if version is None:
                continue
            faults = list(_faults(lake, table, reads_files=reads_files))
            count += len(faults)
            path = f"{root}/{table.folder}"
            tables.append({"table": table.qualified_name, "path": path, "version": version, "faults": faults})
    return {"lake": root, "checked": len(tables), "faults": count, "tables": tables}


def _faults(lake: OpenedCatalog, table: TablePosition, *, reads_files: bool) -> Iterator[str]:
    of, capture = (table.database, table.relation), lake.owner.capture
    app = messages_app(capture, of[0]) if table.relation == INVALID_OID else table_app(capture, of, LOG)
    try:
        with translated(f"{lake.root}/{table.folder}"):
            try:
                log = lake.catalog.load_table(table_name(table.folder))
            except NoSuchTableError:
                if table.state is not TableState.DROPPED:  # then its owner may remove it
                    yield f"{table.folder} is not in the catalog"
                return
            read_applied(log, app, table.position)
            check_columns(log)
            yield from _damaged_files(log, reads_files=reads_files)
    except TidemarkError as error:
        yield str(error)


def _damaged_files(log: Table, *, reads_files: bool) -> Iterator[str]:
    for task in log.scan().plan_files():
        path, size = Path(_local(task.file.file_path)), task.file.file_size_in_bytes
        try:
            found = path.stat().st_size
        except FileNotFoundError:
            yield f"data file {path} is missing"
            continue
        if found != size:
            yield f"data file {path} has {found} bytes, but {size} were written"
        elif reads_files:
            yield from _unreadable(path)


def _unreadable(path: Path) -> Iterator[str]:
    try:
        with pq.ParquetFile(path) as file:
            for _ in file.iter_batches(batch_size=BATCH_ROWS):
                pass
    except (pa.ArrowException, OSError) as error:
        yield f"data file {path} cannot be read: {first_reason(str(error))}"


def _local(location: str) -> str:
    """Return the path of a file in the lake's folder: other programs write URLs."""
    return unquote(urlsplit(location).path) if location.startswith("file:") else location
