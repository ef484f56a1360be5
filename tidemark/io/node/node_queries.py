"""Queries to the captured node beside its stream, by a thread of their own.

The thread runs one query at a time, each bounded by the time-outs of its connection. The caller gets a future and
checks it in a later step: a node that hangs delays only the next query.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, Full, Queue
from typing import NamedTuple, TypeVar

from tidemark.io.node.node import Node
from tidemark.io.node.wal_end import streams_from
from tidemark.model.errors import NodeUnreachable
from tidemark.model.lsn import FullXid, Lsn, SystemIdentifier

REQUESTS_MAX = 16
STOP_S = 2.0
ResultT = TypeVar("ResultT")


class RequestsPending(NodeUnreachable):
    """The node has not answered earlier requests."""

    hint = "check that the node answers SQL; the request is repeated"


class OlderOpen(NamedTuple):
    """The open transactions older than `below`."""

    below: FullXid
    names: str | None  # None: there is none


class NodeQueries:
    """Runs queries until it is closed. The first one starts the thread."""

    def __init__(self, dsn: str, system_identifier: SystemIdentifier) -> None:
        self._captured_dsn = dsn
        self._system_identifier = system_identifier
        self._nodes: dict[str, Node] = {}  # by DSN
        self._closing = threading.Event()
        self._queue: Queue[Callable[[], None]] = Queue(REQUESTS_MAX)
        self._starting = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="node requests", daemon=True)

    def close(self) -> None:
        """End after the current request, if that ends soon."""
        self._closing.set()
        with suppress(Full):  # then it checks after the current request
            self._queue.put_nowait(lambda: None)
        with self._starting:
            if self._thread.ident is not None:
                self._thread.join(STOP_S)

    def has_wal(self, lsn: Lsn) -> Future[bool]:
        """Check whether the node has the WAL from `lsn`, by beginning to stream it."""
        return self._submit(lambda: streams_from(self._captured_dsn, self._system_identifier, lsn))

    def find_older(self, below: FullXid | None) -> Future[OlderOpen]:
        """Query the open transactions older than `below`; None: older than the next one."""
        return self._submit(lambda: self._older(below))

    def _submit(self, request: Callable[[], ResultT]) -> Future[ResultT]:
        answer: Future[ResultT] = Future()

        def run() -> None:
            try:
                answer.set_result(request())
            except Exception as error:  # noqa: BLE001 - it is the asker's
                self._forget_nodes()
                answer.set_exception(error)

        try:
            self._queue.put_nowait(run)
        except Full:
            answer.set_exception(RequestsPending(f"{REQUESTS_MAX} requests wait for the node"))
        with self._starting:
            if self._thread.ident is None and not self._closing.is_set():
                self._thread.start()
        return answer

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                request = self._queue.get(timeout=self._late_s())
            except Empty:
                self._work_late()
                continue
            request()
        self._forget_nodes()

    def _late_s(self) -> float | None:
        """Return how long to wait for a request, in seconds, before `_work_late`; None: it has nothing to do."""
        return None

    def _work_late(self) -> None:
        """Do what no request waits for."""

    def _session(self, dsn: str) -> Node:
        """Return the connection to a server of the capture."""
        if dsn not in self._nodes:
            node = Node(dsn)
            try:
                node.check_same_node(self._system_identifier)
                node.query("SET synchronous_commit = 'local'")  # no wait for a synchronous standby that is down
            except BaseException:
                node.close()
                raise
            self._nodes[dsn] = node
        return self._nodes[dsn]

    def _forget_nodes(self) -> None:
        for node in self._nodes.values():
            node.close()
        self._nodes.clear()

    def _older(self, below: FullXid | None) -> OlderOpen:
        node = self._session(self._captured_dsn)
        snapshot = node.snapshot()
        below = snapshot.xmax if below is None else below
        if snapshot.xmin >= below:
            return OlderOpen(below, None)
        names = ", ".join(blocker.who for blocker in node.blockers(below))
        return OlderOpen(below, names or "none that this role can see")
