"""Reads a table's rows from the server into the spool in a separate thread, at the server's speed.

It ends the table's transaction after the last row, and the sessions soon after it, so a slow reader of the rows keeps
nothing open at the node. A table that is delivered by then leaves the sessions to the next one: to connect costs the
server more than to read a small table.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import TypeVar

from tidemark.io.host.logs import Log
from tidemark.io.node.copy_source import CopySource, TableSnapshot
from tidemark.io.node.copy_spool import CopySpool
from tidemark.io.node.copy_stream import BlockBounds
from tidemark.runtime.context import Stopped

Item = TypeVar("Item")
IDLE_S = 1.0  # how long the sessions are kept after the last row while the rows are delivered


class CopyReading:
    """Reads tables of one database after the other."""

    def __init__(self, source: CopySource, bounds: BlockBounds, *, log: Log, stopping: threading.Event) -> None:
        self._source = source
        self._bounds = bounds
        self._log = log
        self._stopping = stopping

    @contextmanager
    def into(self, spool: CopySpool, snapshot: TableSnapshot, locked: ExitStack) -> Iterator[Future[None]]:
        """Read the table that `locked` holds; the result comes when all is in the spool and the transaction has ended.

        The block inside may end before: the reading is aborted then.
        """
        is_left = threading.Event()
        with ThreadPoolExecutor(1, "tidemark-copy-read") as pool:
            try:
                whole = pool.submit(self._read, spool, snapshot, locked, is_left)
                pool.submit(self._close_if_idle, is_left)  # NB: by the same thread, so after the last row
                yield whole
            finally:
                is_left.set()

    def _read(self, spool: CopySpool, snapshot: TableSnapshot, locked: ExitStack, is_left: threading.Event) -> None:
        relation = snapshot.relation
        # NB: `closing`: COPY must end before its transaction does, also if it is aborted.
        with locked, closing(self._source.rows(relation, self._bounds)) as rows:
            spool.fill(until_stopped(rows, self._stopping, is_left), relation.qualified_name)
        self._log.info(
            "table read", table=relation.qualified_name, relation_oid=relation.oid, spooled_bytes=spool.byte_count
        )

    def _close_if_idle(self, is_left: threading.Event) -> None:
        if not is_left.wait(IDLE_S):
            self._source.close()


def until_stopped(items: Iterator[Item], *stopping: threading.Event) -> Iterator[Item]:
    """Yield what comes until one of the events is set; raise `Stopped` then."""
    for item in items:
        if any(event.is_set() for event in stopping):
            raise Stopped
        yield item
