"""The cost of a batch into the lake as its commit logs age: CPU seconds a batch, without Spark.

    fresh      a lake of some tables, with a few commits in each log
    aged       the same lake with --age more commits of one day in each log, none removed
    cleaning   the same while the pipeline's clean-up removes them, a bounded number with each batch
    cleaned    the same after the clean-up

Each batch inserts rows into every table: an append to each log, a merge into each replica, and the positions. The old
commits are written directly, as copies of the table's last one. The limit: cleaned takes at most 1.3 times fresh.

With --replica ROWS measure instead one merge of --rows rows into a replica of that size (`replica_bench`).
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from scripts.bench.delivery import replica_bench
from scripts.bench.measuring.machine import machine
from tests.support.lakes.aged_logs import age, lengthen, versions
from tests.support.lakes.lakes import IDENTITY, batch
from tests.support.lakes.scripted_table import RELATION, ScriptedTable
from tidemark.io.host.logs import configure_logs, get_log
from tidemark.model.lsn import Oid
from tidemark.model.position import Sequence
from tidemark.pipeline.lake.log_cleanup import KEEP_S, LogCleanup
from tidemark.pipeline.lake.types import constants_of, shape_of
from tidemark.pipeline.sinks.sinks import Lake
from tidemark.pipeline.sinks.steps import Delivered

AGE, QUICK_AGE = 100_000, 10_000
BATCHES, QUICK_BATCHES = 100, 40  # several checkpoints long
AGED_BATCHES = 5  # batches without clean-up are slow
TABLES = 2
ROWS = 10  # rows of a table in a batch
AFTER_CHECKPOINT = 10
CLEANING_BATCHES = 20  # batches measured while files are removed; the remaining files are removed without batches
DAY_S = 86_400.0


class Feed:
    """Tables that receive rows, and their lake."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._tables = [ScriptedTable(oid=Oid(RELATION + n), name=f"t{n}") for n in range(TABLES)]
        self._reported = [0] * TABLES
        self._batches = 0
        self._sequence = 0
        self._lake = Lake(str(root), IDENTITY, shape_of, constants_of)

    def reopen(self, root: Path) -> None:
        """Continue in another folder."""
        self.root, self._lake = root, Lake(str(root), IDENTITY, shape_of, constants_of)

    def run(self, cleanup: LogCleanup | None = None) -> tuple[float, int]:
        """Write a batch into the lake; return the CPU seconds and the number of removed files."""
        items: list[Delivered] = []
        for number, table in enumerate(self._tables):
            table.commit(1_000_000 + 100 * (self._batches * TABLES + number))
            for row in range(ROWS):
                table.insert({1: self._batches * ROWS + row, 2: "new", 3: None})
            table.cut()
            for item in table.items[self._reported[number] :]:
                self._sequence += 1
                items.append(Delivered(Sequence(self._sequence), item))
            self._reported[number] = len(table.items)
        self._batches += 1
        begun_s = time.process_time()
        self._lake.apply(batch(items))
        removed = cleanup.run(self._lake.written) if cleanup is not None else 0
        return time.process_time() - begun_s, removed


def logs(root: Path) -> list[Path]:
    """Return the Delta tables of a lake."""
    return [path.parent for path in root.rglob("_delta_log")]


def measure(commits: int, batches: int, root: Path) -> dict[str, object]:
    """Return milliseconds a batch in each phase, and the figures of the clean-up."""
    feed = Feed(root / "fresh")
    for _ in range(3):
        feed.run()
    fresh = _median_ms(lambda: feed.run()[0], batches)
    shutil.copytree(feed.root, root / "aged")
    for table in logs(root / "aged"):
        lengthen(table, commits, after_checkpoint=AFTER_CHECKPOINT)
        age(table, DAY_S)
    feed.reopen(root / "aged")
    feed.run()  # reads the commits since the last batch
    aged = _median_ms(lambda: feed.run()[0], AGED_BATCHES)
    cleanup = LogCleanup(str(feed.root), KEEP_S, get_log("bench"))
    cleaning: list[float] = []
    removed_files = 0
    for _ in range(CLEANING_BATCHES):
        cpu_s, removed = feed.run(cleanup)
        removed_files += removed
        cleaning.append(cpu_s * 1000)
    while removed := cleanup.run([]):
        removed_files += removed
    cleaned = _median_ms(lambda: feed.run(cleanup)[0], batches)
    return {
        "age_commits": commits,
        "fresh_ms": round(fresh, 1),
        "aged_ms": round(aged, 1),
        "cleaned_ms": round(cleaned, 1),
        "cleaned_by_fresh": round(cleaned / fresh, 2),
        "cleaning": {
            "files_removed": removed_files,
            "first_ms": round(cleaning[0], 1),
            "median_ms": round(statistics.median(cleaning), 1),
        },
        "commits_left": max(len(versions(table)) for table in logs(feed.root)),
    }


def _median_ms(turn: Callable[[], float], count: int) -> float:
    return statistics.median(turn() for _ in range(count)) * 1000


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--age", type=int, default=AGE, help="commits in each log (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=BATCHES, help="of each phase (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_AGE} commits, {QUICK_BATCHES} batches")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument("--replica", type=int, metavar="ROWS", help="measure a merge into a replica of this size")
    parser.add_argument("--rows", type=int, default=100, help="changed rows of the merge (default: %(default)s)")
    parser.add_argument("--pattern", choices=replica_bench.PATTERNS, action="append", help="default: each")
    parser.add_argument("--repeats", type=int, default=3, help="of each merge; the best counts (default: %(default)s)")
    given = parser.parse_args()
    if given.quick:
        given.age, given.batches = QUICK_AGE, QUICK_BATCHES
    configure_logs("json", "warning")
    about = machine()
    with tempfile.TemporaryDirectory(prefix="tm-bench-") as folder:
        if given.replica:
            patterns = given.pattern or replica_bench.PATTERNS
            found = replica_bench.measure(Path(folder), given.replica, given.rows, patterns, given.repeats)
        else:
            found = measure(given.age, given.batches, Path(folder))
    if given.json or given.replica:
        json.dump({**about, **found}, sys.stdout, indent=2)
        print()
        return
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print(f"CPU milliseconds a batch of {TABLES} tables, median; each log with {given.age:,} commits more:")
    for name in ("fresh_ms", "aged_ms", "cleaned_ms"):
        print(f"  {name.removesuffix('_ms'):10}{found[name]:>10}")
    print(f"  cleaned by fresh: {found['cleaned_by_fresh']}; commits left: {found['commits_left']}")
    print(f"  cleaning: {found['cleaning']}")


if __name__ == "__main__":
    main()
