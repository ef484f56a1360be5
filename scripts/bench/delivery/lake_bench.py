"""The cost of a batch into the lake as its commit logs age: CPU seconds a batch, without Spark.

    fresh      a lake of some tables, whose logs are cleaned without regard to log.keep
    aged       the same lake with --age more commits of one day in each log, none removed
    cleaning   the same while the pipeline's clean-up removes them, a bounded number with each batch
    cleaned    the same after the clean-up
    kept       the same with --kept commits that are younger than log.keep, as after ten minutes of batches

Each batch inserts rows into every table: an append to each log, a merge into each replica, and the positions. The
commits are written directly, as copies of the table's last one. Each batch of a phase is written into the fresh lake as
well: a replica has more files the longer its last compaction is ago. The limit: cleaned and kept take at most 1.3 times
fresh; otherwise the exit code is 1.

With --changing N... measure instead batches in which N tables change: CPU and elapsed time, of log, replica and
positions together, without Spark. There is a lake for each N, and their batches alternate, so other load of the
machine meets all of them. Each table gets ten new rows, or with --updates U that many updates of earlier rows. With
--of M each lake has M tables, of which N change. `parts` are those of a table (`table_parts`), from further batches.

With --beside FILES measure small batches while a table of that many files is maintained (`maintenance_bench`).

With --replica ROWS measure instead one merge of --rows rows into a replica of that size (`replica_bench`).
"""

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from pathlib import Path

from scripts.bench.delivery import maintenance_bench, replica_bench
from scripts.bench.delivery.table_parts import Profiles
from scripts.bench.measuring.machine import machine
from tests.support.lakes.aged_logs import age, lengthen, versions
from tests.support.lakes.lakes import IDENTITY, batch
from tests.support.lakes.maintained import maintain, maintenance_of
from tests.support.lakes.scripted_table import RELATION, ScriptedTable
from tidemark.io.host.log_output import configure_logs, get_log
from tidemark.io.process.lake_config import LakeConfig
from tidemark.model.lsn import Oid
from tidemark.model.position import Sequence
from tidemark.pipeline.delta_log.log_cleanup import KEEP_S, LogCleanup
from tidemark.pipeline.iceberg.expiry import SnapshotExpiry
from tidemark.pipeline.iceberg.iceberg_lake import IcebergLake
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.landing.settings import LakeFormat
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.lake_batch import LakeBatch
from tidemark.pipeline.sinks.steps import Delivered

AGE, QUICK_AGE = 100_000, 10_000
BATCHES, QUICK_BATCHES = 100, 40  # several checkpoints long
AGED_BATCHES = 5  # batches without clean-up are slow
TABLES = 2
KEPT = 1200  # commits: two a second in KEEP_S
CHECKPOINT_EVERY = 20  # delta-rs's interval
RATIO_MAX = 1.3
PHASES = ("aged", "cleaning", "cleaned", "kept")
ROWS = 10  # rows of a table in a batch
AFTER_CHECKPOINT = 10
FIRST_ROWS = 200  # of a table that gets updates
PARTS_BATCHES = 3  # that are profiled
CLEANING_BATCHES = 20  # batches measured while files are removed; the remaining files are removed without batches
DAY_S = 86_400.0


class LakeFeed:
    """Tables that receive rows; each batch is written into every lake."""

    def __init__(self, tables: int) -> None:
        self._tables = [ScriptedTable(oid=Oid(RELATION + n), name=f"t{n}") for n in range(tables)]
        self._reported = [0] * tables
        self._batches = 0
        self._sequence = 0
        self._random = random.Random(1)

    def next_batch(self, changing: int | None = None, rows: int = ROWS, updates: int = 0) -> LakeBatch:
        """Change every table, or the first ones: insert rows, or with `updates` update earlier ones."""
        items: list[Delivered] = []
        for number, table in enumerate(self._tables[:changing]):
            table.commit(1_000_000 + 100 * (self._batches * len(self._tables) + number))
            for key in self._random.sample(sorted(table.rows), updates):
                table.update(key, {2: f"changed {self._batches}"})
            for row in range(0 if updates else rows):
                table.insert({1: self._batches * FIRST_ROWS + row, 2: "new", 3: None})
            table.cut()
            for item in table.items[self._reported[number] :]:
                self._sequence += 1
                items.append(Delivered(Sequence(self._sequence), item))
            self._reported[number] = len(table.items)
        self._batches += 1
        return batch(items)


class MeasuredLake:
    """A lake, and its clean-up once there is one."""

    def __init__(self, root: Path, keep_s: float | None = None) -> None:
        self.root = root
        self.removed = 0
        self._lake = Lake(str(root), IDENTITY, shape_of, constants_of)
        self.cleanup = None if keep_s is None else LogCleanup(str(root), keep_s, get_log("bench"))
        self._maintenance = maintenance_of(str(root), LakeConfig())

    def apply(self, given: LakeBatch) -> float:
        """Write a batch; return the CPU seconds, those of the clean-up and of due maintenance included."""
        begun_s = time.process_time()
        self._lake.apply(given)
        if self.cleanup is not None:
            self.removed += self.cleanup.run(self._lake.written)
            maintain(self._lake, self._maintenance)
        return time.process_time() - begun_s


def logs(root: Path) -> list[Path]:
    """Return the Delta tables of a lake."""
    return [path.parent for path in root.rglob("_delta_log")]


@dataclass(frozen=True, slots=True)
class Phase:
    """CPU milliseconds a batch, median: of the measured lake, and of the fresh one with the same batches."""

    ms: float
    fresh_ms: float

    @property
    def ratio(self) -> float:
        """The former divided by the latter."""
        return self.ms / self.fresh_ms


def measure(commits: int, kept_commits: int, tables: int, batches: int, root: Path) -> dict[str, object]:
    """Return milliseconds a batch in each phase, and the figures of the clean-up."""
    feed, fresh = LakeFeed(tables), MeasuredLake(root / "fresh", keep_s=0)
    for _ in range(3):
        fresh.apply(feed.next_batch())

    def phase(lake: MeasuredLake, count: int) -> Phase:
        lake.apply(given := feed.next_batch())  # reads the commits since the last batch
        fresh.apply(given)
        trials = [(lake.apply(given), fresh.apply(given)) for given in (feed.next_batch() for _ in range(count))]
        return Phase(*(statistics.median(values) * 1000 for values in zip(*trials, strict=True)))

    shutil.copytree(fresh.root, root / "aged")
    for table in logs(root / "aged"):
        lengthen(table, commits, after_checkpoint=AFTER_CHECKPOINT)
        age(table, DAY_S)
    aged = phase(MeasuredLake(root / "aged"), AGED_BATCHES)
    lake = MeasuredLake(root / "aged", KEEP_S)
    cleaning = phase(lake, CLEANING_BATCHES)
    assert lake.cleanup is not None
    removed = lake.removed
    while more := lake.cleanup.run([]):
        removed += more
    cleaned = phase(lake, batches)
    left = max(len(versions(table)) for table in logs(lake.root))
    for table in logs(lake.root):
        lengthen(table, kept_commits, checkpoint_every=CHECKPOINT_EVERY, after_checkpoint=AFTER_CHECKPOINT)
    kept = phase(MeasuredLake(lake.root, KEEP_S), batches)
    phases = dict(zip(PHASES, (aged, cleaning, cleaned, kept), strict=True))
    return {
        "tables": tables,
        "age_commits": commits,
        "kept_commits": kept_commits,
        **{f"{name}_ms": round(found.ms, 1) for name, found in phases.items()},
        **{f"{name}_by_fresh": round(found.ratio, 2) for name, found in phases.items()},
        "fresh_ms": [round(found.fresh_ms, 1) for found in phases.values()],
        "limit": RATIO_MAX,
        "is_within_limit": max(cleaned.ratio, kept.ratio) <= RATIO_MAX,
        "files_removed": removed,
        "commits_left": left,
    }


class MeasuredIcebergLake:
    """A lake of Iceberg tables."""

    def __init__(self, root: Path) -> None:
        self._lake = IcebergLake(str(root), IDENTITY, shape_of, {}, SnapshotExpiry(KEEP_S, time.time))

    def apply(self, given: LakeBatch) -> float:
        """Write a batch; return the CPU seconds."""
        begun_s = time.process_time()
        self._lake.apply(given)
        return time.process_time() - begun_s


@dataclass(frozen=True, slots=True)
class Changing:
    """A case of changing tables: how many, of how many, and how."""

    count: int
    of: int
    updates: int

    def first_batches(self, feed: LakeFeed) -> Iterator[LakeBatch]:
        """Yield the batches that create the tables and open those that change."""
        yield feed.next_batch(rows=FIRST_ROWS if self.updates else ROWS)
        for _ in range(2):
            yield self.batch(feed)

    def batch(self, feed: LakeFeed) -> LakeBatch:
        """Return the next batch."""
        return feed.next_batch(self.count, updates=self.updates)


def measure_changing(
    cases: SequenceOf[Changing], batches: int, root: Path, lake_format: LakeFormat
) -> dict[str, object]:
    """Return the milliseconds of a batch by the number of tables that change in it, and the parts of one table."""
    is_delta = lake_format is LakeFormat.DELTA
    feeds, lakes = [LakeFeed(case.of) for case in cases], list[MeasuredLake | MeasuredIcebergLake]()
    for case, feed in zip(cases, feeds, strict=True):
        folder = root / f"{len(lakes)}"
        lakes.append(MeasuredLake(folder, KEEP_S) if is_delta else MeasuredIcebergLake(folder))
        for given in case.first_batches(feed):
            lakes[-1].apply(given)
    taken_ms: list[list[tuple[float, float]]] = [[] for _ in cases]
    for _ in range(batches):
        for case, feed, lake, taken in zip(cases, feeds, lakes, taken_ms, strict=True):
            given, begun_s = case.batch(feed), time.monotonic()
            taken.append((lake.apply(given) * 1000, (time.monotonic() - begun_s) * 1000))
    found: dict[str, object] = {"format": lake_format, "batches": batches}
    for case, feed, lake, taken in zip(cases, feeds, lakes, taken_ms, strict=True):
        profiles = Profiles()
        for given in [case.batch(feed) for _ in range(PARTS_BATCHES)]:
            with profiles.measured():
                lake.apply(given)
        cpu_ms, elapsed_ms = (statistics.median(values) for values in zip(*taken, strict=True))
        found[f"{case.count}_tables"] = {
            "of": case.of,
            "cpu_ms": round(cpu_ms),
            "elapsed_ms": round(elapsed_ms),
            "cpu_ms_of_a_table": round(cpu_ms / case.count, 1),
            "least_cpu_ms_of_a_table": round(min(cpu for cpu, _ in taken) / case.count, 1),
            "parts_ms_profiled": profiles.parts_ms(PARTS_BATCHES * case.count),
        }
    return found


def measure_beside(files: int, rows: int, root: Path) -> dict[str, object]:
    """Return the milliseconds of small batches while a table of `files` files is maintained."""
    feed, lake = LakeFeed(TABLES), Lake(str(root), IDENTITY, shape_of, constants_of)

    def apply() -> float:
        given, begun_s = feed.next_batch(), time.monotonic()
        lake.apply(given)
        return time.monotonic() - begun_s

    for _ in range(3):
        apply()
    return maintenance_bench.measure(root, apply, files, rows)


def main() -> int:
    """Read the arguments, measure, print; return 1 if a ratio exceeds its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--age", type=int, default=AGE, help="commits in each log (default: %(default)s)")
    parser.add_argument("--kept", type=int, default=KEPT, help="young commits in each log (default: %(default)s)")
    parser.add_argument("--tables", type=int, default=TABLES, help="of the lake (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=BATCHES, help="of each phase (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_AGE} commits, {QUICK_BATCHES} batches")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument("--replica", type=int, metavar="ROWS", help="measure a merge into a replica of this size")
    parser.add_argument("--changing", type=int, nargs="+", metavar="N", help="measure batches in which N tables change")
    parser.add_argument("--of", type=int, metavar="M", help="tables of each lake of --changing (default: N)")
    parser.add_argument("--updates", type=int, default=0, help="of each table of --changing (default: new rows)")
    parser.add_argument("--beside", type=int, metavar="FILES", help="measure batches beside maintenance of a table")
    parser.add_argument("--file-rows", type=int, default=50_000, help="of --beside (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=100, help="changed rows of the merge (default: %(default)s)")
    parser.add_argument("--pattern", choices=replica_bench.PATTERNS, action="append", help="default: each")
    parser.add_argument("--repeats", type=int, default=3, help="of each merge; the best counts (default: %(default)s)")
    parser.add_argument("--format", type=LakeFormat, choices=list(LakeFormat), default=LakeFormat.DELTA)
    given = parser.parse_args()
    if given.quick:
        given.age, given.batches = QUICK_AGE, QUICK_BATCHES
    configure_logs("json", "warning")
    about = machine()
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as folder:
        if given.replica:
            patterns = given.pattern or replica_bench.PATTERNS
            found = replica_bench.measure(Path(folder), given.replica, given.rows, patterns, given.repeats)
        elif given.beside:
            found = measure_beside(given.beside, given.file_rows, Path(folder))
        elif given.changing:
            cases = [Changing(count, given.of or count, given.updates) for count in given.changing]
            found = measure_changing(cases, given.batches, Path(folder), given.format)
        else:
            found = measure(given.age, given.kept, given.tables, given.batches, Path(folder))
    if given.json or given.replica or given.changing or given.beside:
        json.dump({**about, **found}, sys.stdout, indent=2)
        print()
        return int(not found.get("is_within_limit", True))
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print(f"CPU milliseconds a batch of {given.tables} tables, median; each log with {given.age:,} commits more:")
    fresh_ms = found["fresh_ms"]
    assert isinstance(fresh_ms, list)
    for name, beside in zip(PHASES, fresh_ms, strict=True):
        print(f"  {name:10}{found[f'{name}_ms']:>8}, fresh {beside:>6}: {found[f'{name}_by_fresh']}")
    print(
        f"  {found['files_removed']} files removed, {found['commits_left']} commits left; kept: {given.kept:,} commits"
    )
    return int(not found["is_within_limit"])


if __name__ == "__main__":
    sys.exit(main())
