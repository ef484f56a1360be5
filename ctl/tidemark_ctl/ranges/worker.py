"""What a decoding process of `cdcctl decode --jobs` does: decodes the ranges that it receives, one after another.

It uses what the command had in memory when it was forked, shares two pipes with it, and ends when the command does.
"""

import os
import resource
import select
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from tidemark.engine.wal_ranges import PlannedRange
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.host.disk import write_all
from tidemark.io.host.spill import SpillFolder
from tidemark.io.state.state_folder import StateFolder
from tidemark.io.state.state_views import StateView
from tidemark.model.errors import ExitCode, InternalError, TidemarkError
from tidemark.model.lsn import Lsn
from tidemark.runtime.replay.decode_run import MEMORY_BYTES_DEFAULT, InvalidWal
from tidemark.runtime.replay.history_start import HistoryStart, LsnRange, begin_from_history
from tidemark.runtime.replay.range_start import begin_range
from tidemark.wire.transaction_map import KeptMap
from tidemark_ctl.failure_text import failure_of
from tidemark_ctl.ranges.chunks import ChunkedOutput, OutputClosed
from tidemark_ctl.ranges.messages import RANGE_ORDER, REPORT, DecodeRequest, RangeOrder, Report, ReportKind
from tidemark_ctl.ranges.range_output import chunk_path, print_range


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """What a process begins with; the command has read all of it."""

    request: DecodeRequest
    state: StateFolder
    view: StateView
    kept: KeptMap  # for its catalog changes
    folder: Path  # for chunks and for parts of large transactions; the command removes it
    chunks_max: int  # that may exist at once
    output: int  # descriptor of the command's output, for a range whose turn it is


class _Worker:
    """One process, its two pipes and its files."""

    def __init__(self, started: WorkerStart, orders: int, reports: int) -> None:
        self._orders = orders
        self._received = b""  # of an order that has not arrived whole
        self._lines: list[bytes] = []
        self._reports = reports
        self._output = started.output
        self._chunks_max = started.chunks_max
        self._is_next = -1  # the range whose rest may go to the output
        self._request = started.request
        self._folder = started.folder
        self._free = started.chunks_max
        self._waiting: list[RangeOrder] = []
        self._view = started.view
        self._history = started.state.history
        self._archive = ArchiveFolder(Path(started.request.archive), of=self._view.identity.system_identifier)
        self._kept = started.kept
        self._spill = SpillFolder(self._folder / f"spill-{os.getpid()}")

    def run(self) -> None:
        """Decode ranges until the command closes the pipe."""
        while (order := self._next_order()) is not None:
            try:
                self._send(self._decode(order))
            except OutputClosed:
                self._send(Report(ReportKind.CLOSED, order.number))
            except Exception as error:  # noqa: BLE001 - the command raises it again
                self._send(_failed(order.number, error))

    def _next_order(self) -> RangeOrder | None:
        while not self._waiting:
            if not self._read():
                return None
        return self._waiting.pop(0)

    def _read_line(self) -> bytes | None:
        """Return the next line; None at the end of the orders."""
        while not self._lines:
            content = os.read(self._orders, 1 << 16)
            if not content:
                return None
            *self._lines, self._received = (self._received + content).split(b"\n")
        return self._lines.pop(0)

    def _has_order(self) -> bool:
        return bool(self._lines or select.select([self._orders], [], [], 0)[0])

    def _read(self) -> bool:
        """Read an order; return whether there was one."""
        line = self._read_line()
        if line is None:
            return False
        order = RANGE_ORDER.read(line)
        if order.part is not None:
            self._waiting.append(order)
        elif order.is_next:
            self._is_next = order.number
        else:
            self._free += 1
        return True

    def _begin_output(self, number: int) -> int | None:
        """Take a chunk; or return the output, if everything before range `number` and all its chunks are printed."""
        while self._has_order() or self._free <= 0 or (self._is_next == number and self._free < self._chunks_max):
            if not self._read():
                sys.exit(ExitCode.UNEXPECTED)  # the command has ended
        if self._is_next == number:
            return self._output
        self._free -= 1
        return None

    def _send(self, report: Report) -> None:
        write_all(self._reports, REPORT.write(report) + b"\n")

    def _decode(self, order: RangeOrder) -> Report:
        assert order.part is not None, order
        before_s = _cpu_s()
        number, lsns = order.number, LsnRange(order.part.from_lsn, order.part.to_lsn)
        start = self._start(order.part)
        output = ChunkedOutput(
            lambda chunk: chunk_path(self._folder, number, chunk),
            lambda: self._begin_output(number),
            lambda path: self._send(Report(ReportKind.CHUNK, number, str(path))),
        )

        def report_end(error: InvalidWal) -> None:
            self._send(Report(ReportKind.NOTE, number, f"WAL ends here: {error}"))

        try:
            counts = print_range(
                self._request,
                self._view.identity.server_major,
                self._archive,
                start,
                lsns=lsns,
                output=cast("BinaryIO", output),
                report_end=report_end,
                reached=_do_nothing,
            )
        finally:
            output.end_chunk()  # also what was decoded before an error
        found = counts.as_dict(0) | {"cpu_s": _cpu_s() - before_s}
        return Report(ReportKind.DONE, number, decoded_lsn=start.decoded_lsn, counts=found)

    def _start(self, part: PlannedRange) -> HistoryStart:
        if part.start is None:
            return begin_from_history(
                self._view,
                self._history,
                part.from_lsn,
                memory_bytes=MEMORY_BYTES_DEFAULT,
                spill=self._spill,
                archive=self._archive,
            )
        return begin_range(
            self._view,
            self._history,
            self._kept,
            part,
            memory_bytes=MEMORY_BYTES_DEFAULT,
            is_requested=self._request.is_from_lsn,
            spill=self._spill,
        )


def _do_nothing(_lsn: Lsn) -> None:
    """Report no progress: the command does."""


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _failed(number: int, error: Exception) -> Report:
    if not isinstance(error, TidemarkError | OSError):
        traceback.print_exception(error)
        return Report(
            ReportKind.ERROR, number, "internal error; see the traceback above", InternalError.hint, ExitCode.INTERNAL
        )
    code, message, hint = failure_of(error)
    return Report(ReportKind.ERROR, number, message, hint, code)


def work(started: WorkerStart, orders: int, reports: int) -> None:
    """Be a decoding process, until the command closes the pipe of its orders."""
    try:
        _Worker(started, orders, reports).run()
    except BrokenPipeError:
        os._exit(ExitCode.UNEXPECTED)  # the command has ended
