"""The parts of what a changed table costs in a batch: CPU time by function, from profiles of all threads.

A profile makes calls of Python functions dearer, so the parts show proportions, not the cost of a batch.
"""

import cProfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

PARTS: Mapping[str, tuple[str, ...]] = {
    "look-up of open tables": ("kept_tables.py:open", "kept_tables.py:keep"),
    "changes since the last batch": ("steps.py:steps",),
    "rows of the log": ("logshape.py:log_rows", "logshape.py:spelled", "file_writing.py:fitted"),
    "changes by key": ("compaction.py:compact",),
    "files with these keys": ("touched_files.py:keyed_files", "merge_plans.py:plan_by_key"),
    "rows of files that are rewritten": ("data_files.py:pieces",),
    "order of the rows of a file": ("data_files.py:ordered",),
    "data files": ("local_store.py:write_parquet",),
    "statistics of data files": ("file_statistics.py:statistics",),
    "sync to disk": ("durability.py:sync_data_files", "durability.py:sync_log"),
    "commits": ("commit_files.py:write_commit",),
    "lists of files after commits": ("file_list.py:changed",),
    "checkpoints and clean-up": ("log_cleanup.py:run", "maintained.py:maintain"),
    "rows of `_positions`": ("positions.py:_rows_of",),
}
"""Functions by file and name, none of which calls another one of them."""
OTHER = "other: threads, locks, settings, retries"


class Profiles:
    """Profiles of the blocks that were measured."""

    def __init__(self) -> None:
        self._profiles: list[cProfile.Profile] = []

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Profile the body, in this thread and in those that begin meanwhile."""
        threading.setprofile(self._begin)
        self._begin()
        mine = self._profiles[-1]
        try:
            yield
        finally:
            mine.disable()
            threading.setprofile(None)

    def _begin(self, _frame: FrameType | None = None, _event: str = "", _argument: object = None) -> None:
        profile = cProfile.Profile(time.thread_time)
        self._profiles.append(profile)
        profile.enable()  # NB: from now on in place of this function

    def parts_ms(self, tables: int) -> dict[str, float]:
        """Return the CPU milliseconds of each part for each of the written `tables`, the largest first."""
        part_of = {function: part for part, functions in PARTS.items() for function in functions}
        seconds = dict.fromkeys([*PARTS, OTHER], 0.0)
        for entry in (entry for profile in self._profiles for entry in profile.getstats()):
            seconds[OTHER] += entry.inlinetime
            if isinstance(entry.code, CodeType):
                part = part_of.get(f"{Path(entry.code.co_filename).name}:{entry.code.co_name}")
                if part is not None:
                    seconds[part] += entry.totaltime
        seconds[OTHER] -= sum(seconds[part] for part in PARTS)
        found = {part: round(taken_s * 1000 / tables, 2) for part, taken_s in seconds.items()}
        return dict(sorted(found.items(), key=lambda part: -part[1]))
