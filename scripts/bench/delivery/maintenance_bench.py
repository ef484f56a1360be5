"""The latency of small batches while a large table is maintained: alone, beside maintenance, and with it in the batch.

The large table has --files files of --file-rows rows, whose ranges of keys overlap. Each small batch inserts rows into
other tables of the lake. `in_batch` is a batch that contains the whole maintenance, as without a thread beside the
stream.
"""

import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.support.lakes.maintained import maintenance_of
from tidemark.io.process.lake_config import LakeConfig
from tidemark.pipeline.delta_log.applied import NOTHING
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.landing.maintenance import Maintenance
from tidemark.pipeline.sinks.table_writes import Upkeep

FOLDER, APP = "large", "tidemark:bench:large"
BATCHES_MIN = 20
SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.int64()), ("note", pa.string())])


def measure(root: Path, apply: Callable[[], float], files: int, rows: int) -> dict[str, object]:
    """Return milliseconds of the batches that `apply` writes, which returns the seconds of one."""
    large = root / FOLDER
    table = _large_table(large, files, rows)
    shutil.copytree(large, root / "copy")
    alone = [apply() for _ in range(BATCHES_MIN)]
    beside: list[float] = []
    maintenance = _due(root, table)
    begun_s = time.monotonic()
    with maintenance.running():
        while len(beside) < BATCHES_MIN or _file_count(large) > 2 * files // 3:
            beside.append(apply())
    maintained_s = time.monotonic() - begun_s
    shutil.rmtree(large)
    (root / "copy").rename(large)
    begun_s = time.monotonic()
    inline = _due(root, LakeTable(str(large), APP))
    while inline.step():
        pass
    in_batch_s = time.monotonic() - begun_s + apply()
    return {
        "large_rows": files * rows,
        "large_files": files,
        "alone_ms": _percentiles(alone),
        "beside_ms": _percentiles(beside),
        "beside_batches": len(beside),
        "beside_s": round(maintained_s, 1),
        "in_batch_ms": round(in_batch_s * 1000),
    }


def _due(root: Path, table: LakeTable) -> Maintenance:
    made = maintenance_of(str(root), LakeConfig(maintain_commits=1))
    made.report([(FOLDER, table.version)], {FOLDER: Upkeep(APP, table.recorded, ("id",), 1 << 20, 1)})
    return made


def _large_table(path: Path, files: int, rows: int) -> LakeTable:
    random = np.random.default_rng(1)
    table = LakeTable(str(path), APP)
    table.create(SCHEMA, NOTHING)
    for _ in range(files):
        ids = pa.array(random.integers(0, 1 << 40, rows))
        table.append(pa.table([ids, ids, ids.cast(pa.string())], schema=SCHEMA), NOTHING)
    return table


def _file_count(path: Path) -> int:
    return len(LakeTable(str(path), APP).files(["id"]))


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "p50": round(statistics.median(ordered) * 1000, 1),
        "p99": round(ordered[len(ordered) * 99 // 100] * 1000, 1),
        "max": round(ordered[-1] * 1000, 1),
    }
