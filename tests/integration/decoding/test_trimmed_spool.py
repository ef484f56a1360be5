"""`cdcctl decode` on a folder whose WAL begins after the catalog bases, as Tidemark's spool does by default."""

import json
import shutil
from pathlib import Path

from pyspark_tidemark.archive_source import ArchiveSource
from tests.support.processes.captures import Sidecar
from tests.support.processes.cdcctl import cdcctl, refused, reported, succeeded
from tests.support.servers.postgres import Cluster
from tidemark.io.state.state import StateStore
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import TimelineId, format_lsn
from tidemark.wal.segments import SEGMENT_BYTES_DEFAULT, segment_name


def test_a_spool_that_is_trimmed_is_decoded_from_where_everything_can_be_had(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    """Its WAL begins after the only catalog base, as `archive.keep_bytes` is 0."""
    cluster.sql("CREATE TABLE account (id int PRIMARY KEY, note text)", database)
    sidecar = Sidecar(cluster, database, tmp_path)
    sidecar.init()
    early = cluster.flush_lsn()
    try:
        sidecar.start()
        cluster.sql("INSERT INTO account VALUES (1, 'x')", database)
        cluster.sql("ALTER TABLE account ADD COLUMN more text DEFAULT 'm'; SELECT pg_switch_wal()", database)
        cluster.sql("INSERT INTO account VALUES (2, 'x')", database)
        sidecar.catch_up()
        assert sidecar.stop() == ExitCode.SUCCESS
    finally:
        sidecar.close()
    cluster.sql("INSERT INTO account VALUES (3, 'x', 'last')", database)
    end = cluster.flush_lsn()
    cluster.sql("ALTER TABLE account ADD COLUMN added text; SELECT pg_switch_wal()", database)
    cluster.sql("INSERT INTO account VALUES (4, 'x', 'later', 'with DDL'); SELECT pg_switch_wal()", database)
    with StateStore.open(sidecar.folder, read_only=True) as store:
        confirmed = store.view().horizon
    assert confirmed is not None
    first = segment_name(TimelineId(1), confirmed.pointer.restart_lsn // SEGMENT_BYTES_DEFAULT, SEGMENT_BYTES_DEFAULT)
    archive = tmp_path / "archive"
    archive.mkdir()
    for path in (cluster.data / "pg_wal").iterdir():
        if len(path.name) == len(first) and path.name >= first:
            shutil.copy2(path, archive)
    common = ("--state", str(sidecar.folder.root), "--archive", str(archive), "--to", end, "--table", "public.account")
    done = succeeded(cdcctl("decode", *common, "--message", "none"))
    items = [json.loads(line) for line in done.lines]
    assert [item["after"] for item in items] == [{"id": 3, "note": "x", "more": "last"}]
    behind = format_lsn(confirmed.pointer.position.commit_lsn + 1)
    assert f"decoding begins at {behind}" in done.err
    assert "archive.keep_bytes" in done.err
    assert succeeded(cdcctl("decode", *common, "--message", "none", "--from", behind)).out == done.out
    for begin in ({}, {"from": behind}):
        options = {"state": str(sidecar.folder.root), "archive": str(archive), "table": "account", **begin}
        source = ArchiveSource(options)
        reader = source.reader(source.schema())
        rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
        assert [(row["id"], row["note"], row["more"], row["added"]) for row in rows] == [
            (3, "x", "last", None),
            (4, "x", "later", "with DDL"),
        ]
    too_early = cdcctl("decode", *common, "--from", early)
    refused(too_early, ExitCode.GAP, early, f"decoding is possible from {behind} on")
    assert "archive.keep_bytes" in reported(too_early.err)[1]
