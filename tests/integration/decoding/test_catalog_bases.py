"""The bases that a capture writes on its way: a range of WAL is read from near its begin, with the same result."""

import json
from pathlib import Path

from tests.support.processes.captures import Sidecar
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.servers.postgres import Cluster
from tidemark.io.state.state import StateStore
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import parse_lsn
from tidemark.runtime.replay.history_start import begin_from_history

DISTANCE_BYTES = 1 << 20  # the least that the configuration accepts
MEMORY_BYTES = 64 << 20
TRANSACTIONS = 12
ROWS = 500
WIDE = 900  # bytes of a row: half a megabyte of WAL a transaction


def test_a_range_is_read_from_a_base_near_its_begin(cluster: Cluster, database: str, tmp_path: Path) -> None:
    cluster.sql(f"CREATE TABLE account (id int PRIMARY KEY, note char({WIDE}))", database)
    sidecar = Sidecar(cluster, database, tmp_path)
    sidecar.options |= {
        "TIDEMARK_HISTORY__BASE_EVERY_BYTES": str(DISTANCE_BYTES),
        "TIDEMARK_ARCHIVE__KEEP_BYTES": str(1 << 30),
    }
    sidecar.init()
    first = parse_lsn(cluster.flush_lsn())
    begins = []
    try:
        sidecar.start()
        for number in range(TRANSACTIONS):
            cluster.sql(f"ALTER TABLE account ADD COLUMN c{number} int DEFAULT {number}", database)
            rows = f"generate_series({number * ROWS}, {(number + 1) * ROWS - 1}) n"
            cluster.sql(f"INSERT INTO account SELECT n, '' FROM {rows}", database)
            begins.append(cluster.flush_lsn())
        sidecar.catch_up()
        assert sidecar.stop() == ExitCode.SUCCESS
    finally:
        sidecar.close()
    cluster.sql("INSERT INTO account VALUES (-1, 'last')", database)
    with StateStore.open(sidecar.folder, read_only=True) as store:
        view = store.view()
    assert len(view.history.bases) > 4
    begin = parse_lsn(begins[-1])
    start = begin_from_history(view, sidecar.folder.history, begin, memory_bytes=MEMORY_BYTES)
    assert begin - start.lsn < 3 * DISTANCE_BYTES < begin - first
    common = ("decode", "--state", str(sidecar.folder.root), "--archive", str(cluster.data / "pg_wal"))
    where = ("--from", begins[-1], "--to", cluster.flush_lsn(), "--table", "public.account", "--message", "none")
    (only,) = (json.loads(line) for line in succeeded(cdcctl(*common, *where)).lines)
    added = {f"c{number}": number for number in range(TRANSACTIONS)}
    assert only["after"] == {"id": -1, "note": "last".ljust(WIDE), **added}
