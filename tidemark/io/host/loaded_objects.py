"""Keeps the garbage collector from visiting what a process has loaded.

A worker process of Spark collects garbage after each task (`manager` in pyspark/daemon.py). With all modules that a
partition needs, a collection visited a few hundred thousand objects, and took as much CPU as reading the partition.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


class _Loaded:
    """Whether this process, or the one that it was forked from, has done so."""

    is_skipped = False


@contextmanager
def skipping_loaded_objects() -> Iterator[None]:
    """After the first task in this process, exclude all objects that exist then from later collections."""
    try:
        yield
    finally:
        if not _Loaded.is_skipped:
            _Loaded.is_skipped = True
            gc.collect()  # or garbage of the task would stay forever
            gc.freeze()
