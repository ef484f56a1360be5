"""Compares source and replica at one LSN: row counts, and a hash of the content in key order.

`python -m tidemark.pipeline.lake.compare`: stop all writers of the source, then run it. It makes the node flush all
committed WAL, waits until the lake contains that LSN, and reads each table by COPY and its replica from the lake. Both
sides are compared as values of the lake (`docs/types.md`): a comparison cannot show what the type mapping discards.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.decode.copy.copied import CopyBatchBuilder
from tidemark.decode.groups.partitions import alone, as_target
from tidemark.io.host.local_path import lake_location, local_path
from tidemark.io.node.copy_source import CopySource
from tidemark.io.node.node import Node
from tidemark.io.process.config_loading import load_config
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import AFTER
from tidemark.model.errors import ExitCode, TidemarkError
from tidemark.model.lsn import Lsn, Oid, TimelineId, format_lsn
from tidemark.model.mapping import TypeMapping
from tidemark.model.position import Position
from tidemark.model.relation import Relation
from tidemark.pipeline.lake.deletion_marks import DELETED, MARK_NAMES, MARK_NUMBERS
from tidemark.pipeline.lake.faults import FaultKind
from tidemark.pipeline.lake.layout import LakeColumn, key_names, lake_columns, numbered
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.positions.table_position import TablePosition, TableState
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.storage.stores import open_lake
from tidemark.wal.versions import wal_format
from tidemark.wire.state.copy_progress import CopyProgress

POLL_S = 0.2
ROWS_MAX = 50_000  # of COPY, converted to Arrow together
_NO_POSITION = Position(TimelineId(0), Lsn(0), 0)  # compared rows have no position


class LakeBehind(TidemarkError):
    """The lake did not reach the source's position within the time limit."""

    hint = "check `cdcctl status` and whether the pipeline runs; then compare again, with a greater --wait-s"


@dataclass(frozen=True, slots=True)
class Compared:
    """The result for one table; hashes are SHA-256 over the rows in key order, events are rows of the change log."""

    table: str
    source_rows: int
    replica_rows: int
    source_hash: str
    replica_hash: str
    events: int = 0
    repeated_events: int = 0  # same position twice; more than 0 is an error of Tidemark

    @property
    def identical(self) -> bool:
        """Return whether both sides contain the same rows, and the log no change twice."""
        same = (self.source_rows, self.source_hash) == (self.replica_rows, self.replica_hash)
        return same and not self.repeated_events


def wait_for_lake(folder: StateFolder, lake: str, lsn: Lsn, wait_s: float) -> Positions:
    """Return the lake's positions once they contain all commits before `lsn`; raise `LakeBehind` after `wait_s`.

    The delivered position also moves over WAL without changes. Once it has passed `lsn`, the outbox's head is the last
    value that the lake must contain.
    """
    deadline = time.monotonic() + wait_s
    with StateStore.open(folder) as store:
        while True:
            view = store.view()
            delivered = view.delivered.pointer.position.commit_lsn if view.delivered is not None else Lsn(0)
            positions = Positions(lake, store.identity)
            deferred = [one for one in positions.tables.values() if one.replica.is_faulty(FaultKind.DEFERRED)]
            if delivered >= lsn and positions.applied.sequence >= view.ledger.head and not deferred:
                return positions
            if time.monotonic() >= deadline:
                raise LakeBehind(
                    f"after {wait_s:.0f} s, {format_lsn(delivered)} of {format_lsn(lsn)} is delivered, and the lake "
                    f"contains {positions.applied.sequence} of {view.ledger.head} outbox values; {len(deferred)} "
                    "replicas wait for their merge interval"
                )
            time.sleep(POLL_S)


def compare_table(source: CopySource, table: TablePosition, lake: str, types: TypeMapping) -> Compared | None:
    """Compare one table; None if the source has dropped it."""
    known = source.table(table.relation)
    if known is None:
        return None
    with source.locked_snapshot(known) as snapshot:
        relation = as_target(snapshot.relation) if known.is_partitioned else alone(snapshot.relation)
        builder = CopyBatchBuilder(table.database, relation, source.dialect_of(snapshot).dialect.mapped(types))
        blocks = (block for block in source.rows(relation) if block.rows)
        batches = [builder.build(*block, _NO_POSITION, 0).rows.column(AFTER) for block in blocks]
    columns = _followed_columns(table, relation)
    expected = _source_table(columns, batches, builder)
    found = pa.table(LakeTable(f"{lake}/{table.folder}/replica", "").scan().read_all())
    if MARK_NUMBERS & numbered(found.schema).keys():
        found = found.filter(pc.invert(found.column(DELETED))).drop_columns(sorted(MARK_NAMES))
    if table.pinned is not None:
        found = found.select(expected.column_names)  # a column that the source dropped keeps older values
    keyed = {column.number for column in lake_columns(relation) if column.name in key_names(relation)}
    key = [column.name for column in columns if column.number in keyed]
    return Compared(
        f"{table.namespace}.{table.name}",
        expected.num_rows,
        found.num_rows,
        _hash(expected, key),
        _hash(found, key),
        *_count_events(f"{lake}/{table.folder}/log"),
    )


def _count_events(uri: str) -> tuple[int, int]:
    """Return the number of changes in the log, and the number of repeated ones."""
    log = LakeTable(uri, "")
    if not log.exists:
        return 0, 0
    positions = pa.table(log.scan(["_commit_lsn", "_ordinal"]).read_all())
    distinct = positions.group_by(positions.column_names).aggregate([]).num_rows
    return positions.num_rows, positions.num_rows - distinct


def _followed_columns(table: TablePosition, relation: Relation) -> list[LakeColumn]:
    """Return the columns of `relation` that the replica follows, under their names there."""
    columns = lake_columns(relation)
    if table.pinned is None:
        return list(columns)
    names = {column.number: column.name for column in lake_columns(table.pinned)}
    return [replace(column, name=names[column.number]) for column in columns if column.number in names]


def _source_table(
    columns: Sequence[LakeColumn], batches: Sequence[pa.StructArray], builder: CopyBatchBuilder
) -> pa.Table:
    """Return the source's rows with `columns`."""
    structs = batches or [builder.build(b"", 0, _NO_POSITION, 0).rows.column(AFTER)]
    arrays = [pa.chunked_array([struct.field(column.index) for struct in structs]) for column in columns]
    return pa.table(arrays, names=[column.name for column in columns])


def _hash(table: pa.Table, key: Sequence[str]) -> str:
    """Return a hash of the rows in key order, with columns in the order of their names: the layout does not matter.

    Rows without a key are sorted by their text, so equal rows are adjacent.
    """
    names = sorted(table.column_names)
    digest = hashlib.sha256(repr(names).encode())
    ordered = table.select(names)
    rows = _texts(ordered.sort_by([(name, "ascending") for name in key])) if key else sorted(_texts(ordered))
    for row in rows:
        digest.update(row.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _texts(table: pa.Table) -> Iterator[str]:
    for batch in table.to_batches(max_chunksize=ROWS_MAX):
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield repr(values)


def compare(dsn: str, folder: StateFolder, lake: str, wait_s: float) -> tuple[Lsn, list[Compared]]:
    """Compare every live table of the lake; return the LSN of the comparison, and the tables by name."""
    with StateStore.open(folder) as store:
        view = store.view()
    assert view.beginning is not None, folder.root
    with Node(dsn) as node:
        lsn = node.flush_lsn()
        present = {Oid(oid): str(name) for oid, name in node.query("SELECT oid::int8, datname::text FROM pg_database")}
        node.flush_all()  # the marker after it moves the delivered position past it
    positions = wait_for_lake(folder, lake, lsn, wait_s)
    compared: list[Compared] = []
    for database in view.beginning.databases.keys() & present.keys():
        fmt = wal_format(view.identity.server_major)
        with closing(CopySource(dsn, present[database], fmt, database)) as source:
            tables = [known for known in positions.tables.values() if known.database == database]
            live = [table for table in tables if _has_replica(table)]
            results = (compare_table(source, table, lake, view.beginning.types) for table in live)
            compared += [result for result in results if result is not None]
            compared += _missing(source, database, view.copies, positions)
    return lsn, sorted(compared, key=lambda one: one.table)


def _has_replica(table: TablePosition) -> bool:
    """Return whether a table has a replica that is written."""
    return table.state is TableState.LIVE and table.replica_version >= 0 and table.replica.fault is None


def _missing(
    source: CopySource, database: Oid, copies: Mapping[tuple[Oid, Oid], CopyProgress], positions: Positions
) -> list[Compared]:
    """Return the tables that were copied but are missing in the lake: worse than a difference."""
    return [
        Compared(f"{table.namespace}.{table.name}", copy.row_count, 0, "copied", "not in the lake")
        for table in source.tables()
        if (copy := copies.get((database, table.oid))) is not None and copy.generation
        if (database, table.oid) not in positions.recorded
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and print; return 0 if everything is identical."""
    parser = argparse.ArgumentParser(prog="python -m tidemark.pipeline.lake.compare", description=__doc__)
    parser.add_argument("--dsn", required=True, help="the source; its role reads the tables")
    parser.add_argument("--state", required=True, help="the capture's state folder")
    parser.add_argument("--lake", required=True, help="folder of the tables, or s3://BUCKET/PREFIX")
    parser.add_argument("--config", help="the configuration with the options of the object store")
    parser.add_argument("--wait-s", type=float, default=60.0, help="for the lake to catch up (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    try:
        folder, lake = StateFolder(local_path(given.state, "--state")), lake_location(given.lake, "--lake")
        path = local_path(given.config, "--config") if given.config else None
        open_lake(lake, load_config(path, os.environ).lake)
        lsn, tables = compare(given.dsn, folder, lake, given.wait_s)
    except TidemarkError as error:
        print(f"compare: {error}\n  hint: {error.hint}", file=sys.stderr)  # noqa: T201 - a program's own output
        return error.exit_code
    results = [{**asdict(one), "identical": one.identical} for one in tables]
    if given.json:
        print(json.dumps({"lsn": format_lsn(lsn), "tables": results}))  # noqa: T201
    else:
        for one in tables:
            verdict = "identical" if one.identical else "DIFFERENT"
            rows = f"{one.source_rows} rows, replica {one.replica_rows}"
            print(f"{one.table}: {rows}, {one.events} events ({one.repeated_events} twice): {verdict}")  # noqa: T201
    return ExitCode.SUCCESS if all(one.identical for one in tables) else ExitCode.UNEXPECTED
