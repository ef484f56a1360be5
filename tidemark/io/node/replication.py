"""A client of the node's walsender: physical streaming without a slot (`walsender.c`, libpq's COPY BOTH mode).

psycopg holds the interpreter lock inside libpq, so nothing here blocks in it: the connection is non-blocking, and
waiting is poll() with a deadline. Keepalives are answered at once, inside `receive`; the owner of a stream calls it at
least every `WAL_SENDER_TIMEOUT_S`, or the server disconnects. It never sends a flush position or requests a slot.
"""

import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import psycopg
from psycopg import pq

from tidemark.io.node.dsn import complete_dsn, describe_dsn
from tidemark.io.node.node_errors import (
    AheadOfNode,
    StandbyBehind,
    StandbyPromoted,
    TimelineUnknown,
    WrongNode,
    connection_error,
    replication_error,
)
from tidemark.model.commit_time import MSECS_PER_SECOND
from tidemark.model.errors import CorruptWal, NodeUnreachable
from tidemark.model.lsn import Lsn, SystemIdentifier, TimelineId, format_lsn, parse_lsn
from tidemark.wal.segments import TimelineHistory, WalSlice, parse_history
from tidemark.wal.versions import WalFormat, wal_format
from tidemark.wire.replication import (
    Keepalive,
    WalData,
    history_command,
    parse_message,
    start_command,
    status_update,
)

WAL_SENDER_TIMEOUT_S = 5  # set for our session instead of 60: a stopped client can delay a fast shutdown this long
SILENCE_S_MAX = 3 * WAL_SENDER_TIMEOUT_S  # a live server sends something within half of that timeout
COMMAND_TIMEOUT_S = 30
CONNECT_TIMEOUT_S = 30  # for all addresses of a DSN together


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The result of IDENTIFY_SYSTEM."""

    system_identifier: SystemIdentifier
    timeline: TimelineId
    flush_lsn: Lsn


@dataclass(frozen=True, slots=True)
class TimelineEnd:
    """The end of the streamed timeline: all of it was received, and streaming continues on `next_timeline`."""

    next_timeline: TimelineId
    next_start_lsn: Lsn


WalEvent = WalSlice | Keepalive
StreamEvent = WalEvent | TimelineEnd


class WalStream:
    """One replication connection: first identify, then start, then receive."""

    def __init__(self, dsn: str) -> None:
        """Connect; raise a specific error on failure."""
        self.where = describe_dsn(dsn)
        self._timeline = TimelineId(0)
        self._node_timeline = TimelineId(0)  # when it was identified; 0: never
        self._received_lsn = Lsn(0)
        self._heard_s = time.monotonic()
        self._streaming = False
        self._is_over = False
        self._readable = select.poll()
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._readable.register(self._woken, select.POLLIN)
        # NB: `replication=true` is no database connection: pg_hba.conf needs a line for `replication`.
        options = f"-c wal_sender_timeout={WAL_SENDER_TIMEOUT_S * 1000}"
        try:
            self._conn = _connect(complete_dsn(dsn, options=options, replication="true"), self.where)
        except BaseException:
            os.close(self._woken)
            raise
        try:
            self.format: WalFormat = wal_format(self._conn.server_version // 10_000)
            # TLS and GSSAPI, which Unix sockets do not have, can hold decrypted bytes beside an empty socket.
            self._shows_all = self._conn.host.startswith(b"/")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the socket's descriptor, for poll() together with others."""
        return self._conn.socket

    def close(self) -> None:
        """Close the connection; may be called more than once."""
        self._conn.finish()
        if self._woken >= 0:
            os.close(self._woken)
            self._woken = -1

    @property
    def received_lsn(self) -> Lsn:
        """The end of the received WAL."""
        return self._received_lsn

    def identify(self, expected: SystemIdentifier | None = None) -> NodeIdentity:
        """Return the node's identity; raise `WrongNode` if it is not `expected`."""
        result = self._command(b"IDENTIFY_SYSTEM")
        identifier, timeline, lsn = (_text(result, column) for column in range(3))
        if expected is not None and int(identifier) != expected:
            raise WrongNode(f"{self.where} is the cluster {identifier}, not {expected}")
        self._node_timeline = TimelineId(int(timeline))
        return NodeIdentity(SystemIdentifier(int(identifier)), self._node_timeline, parse_lsn(lsn))

    def is_standby(self) -> bool:
        """Return whether the node is in recovery; a promotion keeps the connection, becoming a standby ends it."""
        return _text(self._command(b"SHOW in_hot_standby"), 0) == "on"

    def timeline_history(self, timeline: TimelineId) -> TimelineHistory:
        """Return the history of `timeline`."""
        if timeline == 1:
            return parse_history("", 1)  # timeline 1 has no history file
        return parse_history(_text(self._command(history_command(timeline)), 1), timeline)

    def start(self, start_lsn: Lsn, timeline: TimelineId) -> TimelineEnd | None:
        """Start streaming; return the timeline's end if it is at `start_lsn`."""
        try:
            result = self._command(start_command(start_lsn, timeline))
        except TimelineUnknown as error:
            before = self._node_timeline
            if before and self.identify().timeline != before:
                raise StandbyPromoted(str(error)) from error
            raise
        self._timeline, self._received_lsn = timeline, start_lsn
        if result.status == pq.ExecStatus.COPY_BOTH:
            self._streaming = True
            self._readable.register(self._conn.socket, select.POLLIN)
            return None
        return self._timeline_end(result)

    @property
    def is_over(self) -> bool:
        """Return whether the server has left COPY mode; `read` returns why, within a command's time."""
        return self._is_over

    def read(self, timeout_s: float) -> StreamEvent | None:
        """Return the next event, or None if none arrives within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        event = self.receive()
        while event is None and not self._is_over and (remaining_s := deadline - time.monotonic()) > 0:
            self.wait(remaining_s)
            event = self.receive()
        return self._copy_ended() if self._is_over else event

    def wait(self, timeout_s: float) -> bool:
        """Wait until something arrives at the socket; false if nothing does within `timeout_s` or before a `wake`.

        What was received before, and not returned, does not count: `receive` has returned None since.
        """
        ready = self._readable.poll(timeout_s * MSECS_PER_SECOND)
        for descriptor, _ in ready:
            if descriptor == self._woken:
                os.eventfd_read(self._woken)
                return False
        return bool(ready)

    def wake(self) -> None:
        """End a `wait` of another thread; if there is none, the next one. Not after `close`."""
        os.eventfd_write(self._woken, 1)

    def receive(self, *, is_read: bool = False) -> WalEvent | None:
        """Return the next event that is already available, without waiting; answer keepalives.

        `is_read`: the socket was read since the last `wait`, which will show what has arrived since.
        """
        assert self._streaming, "start comes before receive"
        if self._is_over:
            return None
        try:
            count, message = self._conn.get_copy_data(1)
            if count == 0 and not (is_read and self._shows_all):
                self._conn.consume_input()
                count, message = self._conn.get_copy_data(1)
        except psycopg.OperationalError as error:
            raise self._lost(error) from error
        now_s = time.monotonic()
        if count == 0:
            if now_s - self._heard_s > SILENCE_S_MAX:
                raise NodeUnreachable(f"{self.where}: silent for {now_s - self._heard_s:.0f} s while {self._doing()}")
            return None
        self._heard_s = now_s
        if count < 0:
            self._is_over = True
            return None
        parsed = parse_message(message)
        if isinstance(parsed, Keepalive):
            if parsed.reply_requested:
                self.send_status()
            return parsed
        return self._wal(parsed)

    def send_status(self) -> None:
        """Send the received LSN to the server; flush and apply LSN are sent as unknown."""
        deadline = time.monotonic() + WAL_SENDER_TIMEOUT_S
        with self._broken():
            self._conn.put_copy_data(status_update(self._received_lsn, time.time_ns() // 1000))
            while self._conn.flush():
                if time.monotonic() > deadline:
                    raise NodeUnreachable(f"{self.where} does not read the replies")
                _wait(self._conn.socket, select.POLLIN | select.POLLOUT, deadline)
                self._conn.consume_input()  # the server may wait for us to read before it reads

    def _wal(self, message: WalData) -> WalSlice:
        if message.start_lsn != self._received_lsn:
            raise CorruptWal(
                f"{self.where} sent WAL from {format_lsn(message.start_lsn)} instead of "
                f"{format_lsn(self._received_lsn)}"
            )
        wal_slice = WalSlice(message.start_lsn, message.payload, self._timeline)
        self._received_lsn = Lsn(message.start_lsn + len(message.payload))
        return wal_slice

    def _copy_ended(self) -> TimelineEnd:
        """Determine why the server left COPY mode: the timeline's end, an error, or a shutdown."""
        self._streaming = self._is_over = False
        result = self._result()
        if result is not None and result.status == pq.ExecStatus.COPY_IN:
            with self._broken():
                self._conn.put_copy_end()
            result = self._result()
            if result is not None and result.status == pq.ExecStatus.TUPLES_OK:
                self._drain()
                return self._timeline_end(result)
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            error = replication_error(result, self.where, self._doing())
            if isinstance(error, AheadOfNode) and self._may_reach_start():
                raise StandbyBehind(str(error))
            raise error
        raise NodeUnreachable(
            f"{self.where}, {self._doing()}: the node closed the stream",
            hint="see the log of the node; a daemon retries automatically",
        )

    def _may_reach_start(self) -> bool:
        """Return whether a node that does not have the start of the stream may have it later.

        A standby that has restarted sends only WAL that it has replayed, until it streams from its primary again
        (GetStandbyFlushRecPtr, walsender.c). NB: a promotion since leaves no standby, but another timeline.
        """
        self._drain()
        return self.is_standby() or self.identify().timeline != self._timeline

    def _timeline_end(self, result: pq.abc.PGresult) -> TimelineEnd:
        if result.status != pq.ExecStatus.TUPLES_OK or not result.ntuples:
            raise TimelineUnknown(f"{self.where}: no WAL of timeline {self._timeline} after {self._doing()}")
        return TimelineEnd(TimelineId(int(_text(result, 0))), parse_lsn(_text(result, 1)))

    def _doing(self) -> str:
        if not self._timeline:
            return "before streaming"
        return f"streaming timeline {self._timeline} at {format_lsn(self._received_lsn)}"

    def _command(self, command: bytes) -> pq.abc.PGresult:
        with self._broken():
            self._conn.send_query(command)
        result = self._result()
        if result is None:
            raise NodeUnreachable(f"{self.where}: no answer to {command.decode()}")
        if result.status == pq.ExecStatus.FATAL_ERROR:
            error = replication_error(result, self.where, command.decode())
            self._drain()
            raise error
        if result.status != pq.ExecStatus.COPY_BOTH:
            self._drain()
        return result

    def _drain(self) -> None:
        while self._result() is not None:
            pass

    def _result(self) -> pq.abc.PGresult | None:
        deadline = time.monotonic() + COMMAND_TIMEOUT_S
        with self._broken():
            while self._conn.flush() or self._conn.is_busy():
                if time.monotonic() > deadline:
                    raise NodeUnreachable(f"{self.where}: no answer within {COMMAND_TIMEOUT_S} s")
                _wait(self._conn.socket, select.POLLIN, deadline)
                self._conn.consume_input()
            self._heard_s = time.monotonic()
            return self._conn.get_result()

    @contextmanager
    def _broken(self) -> Iterator[None]:
        """Translate libpq's errors of a broken connection."""
        try:
            yield
        except psycopg.OperationalError as error:
            raise self._lost(error) from error

    def _lost(self, error: psycopg.OperationalError) -> NodeUnreachable:
        message = " ".join(str(error).split())
        return NodeUnreachable(
            f"{self.where}, {self._doing()}: {message}", hint="see the log of the node; a daemon retries automatically"
        )


def _connect(dsn: str, where: str) -> pq.abc.PGconn:
    """Connect without blocking inside libpq (except in the host name lookup)."""
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    conn = pq.PGconn.connect_start(dsn.encode())
    status = pq.PollingStatus.WRITING
    while status != pq.PollingStatus.OK:
        if conn.status == pq.ConnStatus.BAD or status == pq.PollingStatus.FAILED:
            message = conn.error_message.decode(errors="replace")
            conn.finish()
            raise connection_error(message, where)
        if time.monotonic() > deadline:
            conn.finish()
            raise connection_error(f"no answer within {CONNECT_TIMEOUT_S} s", where)
        _wait(conn.socket, select.POLLIN if status == pq.PollingStatus.READING else select.POLLOUT, deadline)
        status = pq.PollingStatus(conn.connect_poll())
    conn.nonblocking = 1
    return conn


def _wait(fileno: int, events: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(fileno, events)
    poll.poll(max(0.0, deadline - time.monotonic()) * 1000)


def _text(result: pq.abc.PGresult, column: int) -> str:
    value = result.get_value(0, column)
    assert value is not None, column
    return value.decode()
