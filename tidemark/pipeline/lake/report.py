"""What `cdcctl lake` prints of a lake of Delta tables (`tidemark.pipeline.landing.lake_reports`).

Nothing is written, and a running pipeline is not disturbed: a table may be ahead of what is printed.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from tidemark.model.commit_time import CommitTime
from tidemark.model.errors import ConfigError, TidemarkError
from tidemark.model.lsn import INVALID_OID, SystemIdentifier
from tidemark.model.table_name import TableName
from tidemark.pipeline.delta_log.damage import damage_of
from tidemark.pipeline.delta_log.lineage import NO_VERSION
from tidemark.pipeline.lake.faults import FaultKind, LakeEntry
from tidemark.pipeline.lake.folders import LOG, REPLICA, messages_app, table_app
from tidemark.pipeline.lake.lake_kind import CATALOG_FILE, has_catalog
from tidemark.pipeline.lake.layout import COMMENT, TYPE
from tidemark.pipeline.lake.positions.positions import FOLDER, Positions
from tidemark.pipeline.lake.positions.table_position import TablePosition, TableState
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.lake.tables.table_properties import SOURCE
from tidemark.wire.state.values import Identity

LakeReport = None | bool | int | float | str | Sequence["LakeReport"] | Mapping[str, "LakeReport"]


class NoLake(ConfigError):
    """A folder that is not a lake."""

    hint = "name the folder that `cdcctl spark run --lake` writes"


class NoTable(ConfigError):
    """A name that no table of the lake has, or several."""

    hint = "name it as `cdcctl lake list` prints it: schema.table, database.schema.table, or its folder"


@dataclass(frozen=True, slots=True)
class LakeDelta:
    """A Delta table of the lake: the log or the replica of a table, or the log of messages."""

    name: str
    uri: str
    app: str
    entry: LakeEntry

    @property
    def exists(self) -> bool:
        """Return whether the pipeline has written it."""
        return self.entry.recorded.version != NO_VERSION


class OpenedLake:
    """The lake at `root`, opened for the owner that it names."""

    def __init__(self, root: str) -> None:
        self.root = root
        if has_catalog(root):
            raise NoLake(
                f"{root} is a lake of Iceberg tables, which this command does not support",
                hint=(
                    "cdcctl lake list, check and adopt do; other programs read its tables by its catalog, "
                    f"sqlite:///{quote(root)}/{CATALOG_FILE}"
                ),
            )
        owner = LakeTable(f"{self.root}/{FOLDER}", "")
        if not owner.exists:
            raise NoLake(f"{self.root} is not a lake: it has no {FOLDER}")
        rows = owner.scan(["capture", "system_identifier"]).read_all().to_pylist()
        if not rows:
            raise NoLake(f"{FOLDER} of {self.root} has no rows: another program changed it")
        row = rows[0]
        self.capture, self.system_identifier = str(row["capture"]), str(row["system_identifier"])
        identity = Identity(self.capture, SystemIdentifier(int(self.system_identifier)), "", 0, 0, 0)
        self.positions = Positions(self.root, identity)
        self.tables = sorted(self.positions.recorded.values(), key=lambda table: table.folder)

    def deltas(self, table: TablePosition) -> list[LakeDelta]:
        """Return the Delta tables of a table."""
        folder, of = f"{self.root}/{table.folder}", (table.database, table.relation)
        if table.relation == INVALID_OID:
            return [LakeDelta(LOG, folder, messages_app(self.capture, table.database), table.log)]
        return [
            LakeDelta(name, f"{folder}/{name}", table_app(self.capture, of, name), entry)
            for name, entry in ((LOG, table.log), (REPLICA, table.replica))
        ]

    def find(self, text: str) -> TablePosition:
        """Return the table with that folder or name; of several with one name, the one that is not dropped."""
        by_folder = [table for table in self.tables if table.folder == text.strip("/")]
        found = by_folder or _called(self.tables, text)
        present = [table for table in found if table.state is not TableState.DROPPED] or found
        if not present:
            raise NoTable(f"{self.root} has no table {text}")
        if len(present) > 1:
            folders = ", ".join(table.folder for table in present)
            raise NoTable(f"{self.root} has several tables {text}: {folders}", hint="name the folder of one of them")
        return present[0]


def _called(tables: Sequence[TablePosition], text: str) -> list[TablePosition]:
    """Return the tables with a name, as it is printed or without its database; raise `InvalidTableName`."""
    printed = [table for table in tables if _printed_name(table) == text]
    return printed or [table for table in tables if _is_called(table, TableName.parse(text))]


def _is_called(table: TablePosition, name: TableName) -> bool:
    if table.relation == INVALID_OID:
        return False
    is_in_database = name.database in (None, _database(table))
    return is_in_database and (table.namespace, table.name) == (name.schema, name.table)


def _printed_name(table: TablePosition) -> str:
    """Return the name of a table with its database, as commands accept it; that of messages has no schema."""
    if table.relation == INVALID_OID:
        return f"{_database(table)}.{table.name}"
    return str(TableName(table.namespace, table.name, _database(table)))


def _database(table: TablePosition) -> str:
    return table.folder.partition("/")[0]


def listed(lake: OpenedLake) -> dict[str, LakeReport]:
    """Return all tables of a lake, with the position of the whole lake."""
    applied = lake.positions.applied
    return {
        "lake": lake.root,
        "capture": lake.capture,
        "system_identifier": lake.system_identifier,
        "position": str(applied.position),
        "sequence": applied.sequence,
        "outbox": lake.positions.outbox,
        "leaving": sorted(lake.positions.leaving),
        "tables": [_summary(lake, table) for table in lake.tables],
    }


def _summary(lake: OpenedLake, table: TablePosition) -> dict[str, LakeReport]:
    deltas = lake.deltas(table)
    versions = {delta.name: delta.entry.recorded.version if delta.exists else None for delta in deltas}
    return table_summary(
        table, versions, [f"{delta.name}: {fault}" for delta in deltas for fault in _recorded_fault(delta)]
    )


def table_summary(
    table: TablePosition, versions: Mapping[str, int | None], not_written: Sequence[str] = ()
) -> dict[str, LakeReport]:
    """Return what a lake has of a table, with the recorded `versions` of its log and replica."""
    return {
        "table": table.qualified_name,
        "name": _printed_name(table),
        "database": _database(table),
        "database_oid": table.database,
        "oid": table.relation,
        "folder": table.folder,
        "state": table.state.value,
        "dropped_at": _drop_time(table),
        "position": str(table.position),
        "sequence": table.sequence,
        "generation": table.generation,
        **versions,
        "not_written": [*not_written],
        "breaks": [str(gap) for gap in table.breaks],
    }


def _drop_time(table: TablePosition) -> str | None:
    """Return when a table was dropped; None if it exists, or if that is not known."""
    return str(CommitTime(table.dropped_us)) if table.dropped_us else None


def _recorded_fault(delta: LakeDelta) -> Iterator[str]:
    fault = delta.entry.fault
    if fault is not None:
        yield f"{fault.kind.value} after {fault.position}: {fault.reason}"


def described(lake: OpenedLake, table: TablePosition) -> dict[str, LakeReport]:
    """Return a table with its columns, and the lines that read it."""
    found = {delta.name: _described(delta) for delta in lake.deltas(table) if delta.exists}
    return {"lake": lake.root, **_summary(lake, table), "delta_tables": found}


def _described(delta: LakeDelta) -> dict[str, LakeReport]:
    opened = LakeTable(delta.uri, delta.app)
    metadata = opened.delta.metadata()
    return {
        "path": delta.uri,
        "version": delta.entry.recorded.version,
        "comment": metadata.description or None,
        "source": metadata.configuration.get(SOURCE),
        "columns": [
            {
                "name": field.name,
                "type": str(field.type),
                "source_type": _text(field.metadata, TYPE),
                "comment": _text(field.metadata, COMMENT),
            }
            for field in opened.schema
        ],
        "partition_columns": list(opened.partition),
        "read": reading_lines(delta.uri, is_partitioned=bool(opened.partition)),
    }


def _text(metadata: Mapping[bytes, bytes] | None, key: bytes) -> str | None:
    return (metadata or {}).get(key, b"").decode() or None


def reading_lines(path: str, *, is_partitioned: bool = False) -> dict[str, LakeReport]:
    """Return the lines that read the Delta table at `path` as it is now: SQL for DuckDB, Python for the others.

    Files of a partitioned table lack its partition columns, so that Spark alone cannot read it from a list of files.
    """
    found = f"deltalake.DeltaTable({json.dumps(path, ensure_ascii=False)})"
    text, literal = json.dumps(path, ensure_ascii=False), "'" + path.replace("'", "''") + "'"
    return {
        "duckdb": f"SELECT * FROM delta_scan({literal});",  # noqa: S608 - printed, and quoted
        "polars": f"import polars; polars.scan_delta({text}).collect()",
        "spark": f'spark.read.format("delta").load({text})',
        "spark_without_connector": f"import deltalake; spark.createDataFrame({found}.to_pyarrow_table())"
        if is_partitioned
        else f"import deltalake; spark.read.parquet(*{found}.file_uris())",
    }


def checked(lake: OpenedLake, *, reads_files: bool) -> dict[str, LakeReport]:
    """Return the faults of each Delta table of the lake; with `reads_files` every data file is read."""
    tables: list[LakeReport] = []
    count = 0
    for table in lake.tables:
        for delta in lake.deltas(table):
            if not delta.exists:
                continue
            faults = list(_faults(table, delta, reads_files=reads_files))
            count += len(faults)
            version = delta.entry.recorded.version
            tables.append({"table": table.qualified_name, "path": delta.uri, "version": version, "faults": faults})
    return {"lake": lake.root, "checked": len(tables), "faults": count, "tables": tables}


def _faults(table: TablePosition, delta: LakeDelta, *, reads_files: bool) -> Iterator[str]:
    version = delta.entry.recorded.version
    if delta.entry.fault is not None and delta.entry.fault.kind is not FaultKind.DEFERRED:
        if delta.entry.fault.kind is not FaultKind.EXCLUDED:
            yield from _recorded_fault(delta)
        return
    is_dropped = table.state is TableState.DROPPED  # NB: the pipeline does not check it; its owner may remove it
    try:
        present = LakeTable(delta.uri, delta.app, None if is_dropped else delta.entry.recorded)
        if is_dropped and not present.exists:
            return
        recorded = present if present.version == version else LakeTable(delta.uri, delta.app, version=version)
    except TidemarkError as error:
        yield str(error)
        return
    if recorded.applied.position > table.position:
        yield f"version {version} contains {recorded.applied.position}, but {table.position} is recorded"
    damage = damage_of(delta.uri, present.delta, is_read=lambda _path: reads_files)
    if damage:
        yield damage
