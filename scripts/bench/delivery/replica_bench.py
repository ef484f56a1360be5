"""The cost of one merge into a large replica: CPU seconds, bytes written and files, beside delta-rs's own merge.

The replica has five columns and about 20 bytes a row on disk, and is in the order of its key, as after a first copy.
Each pattern changes --rows rows of a fresh snapshot:

    random   updates of keys anywhere
    range    updates of neighbouring keys in the middle
    tail     half updates of the newest rows, half new rows behind them

The peer merges the same rows into a copy of the same table. Both run in alternating trials, in this
process; the best of --repeats.
"""

import random
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from tidemark.model.position import Sequence
from tidemark.pipeline.delta_log.applied import NOTHING
from tidemark.pipeline.lake.files.file_format import properties_for
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.merge.compaction import Compacted
from tidemark.pipeline.merge.keys import Indexes
from tidemark.pipeline.merge.merging import append_rows, merge_rows

APP = "tidemark:bench:replica"
KEY = ("id",)
COPY_ROWS = 65_536  # of a group of a first copy
PATTERNS = ("random", "range", "tail")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.int32()),
        ("amount", pa.int32()),
        ("note", pa.string()),
        ("updated", pa.timestamp("us", "UTC")),
    ]
)


@dataclass(frozen=True, slots=True)
class MergeCost:
    """Of one merge."""

    cpu_s: float
    wall_s: float
    written_bytes: int
    added_files: int
    removed_files: int

    def report(self) -> dict[str, float]:
        """Return the figures in the units of the documentation."""
        return {
            "cpu_s": round(self.cpu_s, 3),
            "wall_s": round(self.wall_s, 3),
            "written_mb": round(self.written_bytes / 1e6, 2),
            "added_files": self.added_files,
            "removed_files": self.removed_files,
        }


def rows_of(ids: Indexes, seed: int) -> pa.Table:
    """Return rows with these keys."""
    numbers = np.random.default_rng(seed)
    notes = numbers.integers(0, 1 << 40, len(ids))
    return pa.table(
        [
            pa.array(ids, pa.int64()),
            pa.array(numbers.integers(0, 1 << 20, len(ids)), pa.int32()),
            pa.array(numbers.integers(0, 1 << 20, len(ids)), pa.int32()),
            pa.array([f"{note:010x}" for note in notes]),
            pa.array(ids * 1_000_000 + notes, pa.int64()).cast(pa.timestamp("us", "UTC")),
        ],
        schema=SCHEMA,
    )


def build(uri: str, rows: int) -> float:
    """Create a replica of `rows` rows as a first copy does; return the CPU seconds of its appends."""
    table = LakeTable(uri, APP)
    table.create(SCHEMA, NOTHING)
    spent = 0.0
    for begin in range(0, rows, COPY_ROWS):
        copied = rows_of(np.arange(begin, min(rows, begin + COPY_ROWS)), begin)
        begun = time.process_time()
        append_rows(table, copied, KEY, replace(table.applied, sequence=Sequence(begin + 1)))
        spent += time.process_time() - begun
    return spent


def changed_ids(pattern: str, total: int, rows: int, seed: int) -> Indexes:
    """Return the keys of the changed rows."""
    if pattern == "random":
        return np.array(sorted(random.Random(seed).sample(range(total), rows)))
    begin = total - rows // 2 if pattern == "tail" else total // 2
    return np.arange(begin, begin + rows)


def ours(uri: str, rows: pa.Table) -> None:
    """Merge as the pipeline does."""
    table = LakeTable(uri, APP)
    compacted = Compacted(rows, rows.select(KEY).slice(0, 0), {}, only_new=False)
    merge_rows(table, compacted, KEY, replace(table.applied, sequence=Sequence(1)))


def peers(uri: str, rows: pa.Table) -> None:
    """Merge with delta-rs."""
    DeltaTable(uri).merge(
        rows,
        "t.id = s.id",
        source_alias="s",
        target_alias="t",
        streamed_exec=False,
        writer_properties=properties_for(rows),
    ).when_matched_update_all().when_not_matched_insert_all().execute()


def cost_of(uri: str, merge: Callable[[], None]) -> MergeCost:
    """Run a merge and return what it cost."""
    before = {path: path.stat().st_size for path in Path(uri).glob("*.parquet")}
    files = set(DeltaTable(uri).file_uris())
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    merge()
    cpu_s, wall_s = time.process_time() - begun_cpu_s, time.perf_counter() - begun_s
    written = sum(path.stat().st_size for path in Path(uri).glob("*.parquet") if path not in before)
    now = set(DeltaTable(uri).file_uris())
    return MergeCost(cpu_s, wall_s, written, len(now - files), len(files - now))


def measure(root: Path, total: int, rows: int, patterns: Iterable[str], repeats: int) -> dict[str, object]:
    """Return the figures of each pattern, ours and the peer's."""
    uri = str(root / "replica")
    copy_s = build(uri, total)
    size = sum(path.stat().st_size for path in Path(uri).glob("*.parquet"))
    found: dict[str, object] = {
        "replica_rows": total,
        "changed_rows": rows,
        "files": len(DeltaTable(uri).file_uris()),
        "bytes_per_row": round(size / total, 1),
        "first_copy_cpu_s": round(copy_s, 2),
    }
    for pattern in patterns:
        costs: list[tuple[MergeCost, MergeCost]] = []
        for repeat in range(repeats):
            changed = rows_of(changed_ids(pattern, total, rows, repeat), repeat + 1)
            pair = []
            for merge in (ours, peers):
                shutil.copytree(uri, root / "one")
                pair.append(cost_of(str(root / "one"), lambda: merge(str(root / "one"), changed)))  # noqa: B023 - called here
                shutil.rmtree(root / "one")
            costs.append((pair[0], pair[1]))
        best, peer = (min(found, key=lambda cost: cost.cpu_s) for found in zip(*costs, strict=True))
        found[pattern] = {
            "tidemark": best.report(),
            "delta-rs": peer.report(),
            "cpu_ratio": round(peer.cpu_s / best.cpu_s, 1),
            "bytes_ratio": round(peer.written_bytes / best.written_bytes, 1),
        }
    return found
