"""The decoding processes, and their output in order.

The ranges are given out in order, one at a time to each process. The process of the first range that is not printed yet
writes to the output itself, as soon as the range's chunks are printed; the chunks of later ranges wait in their files.
A process that ends before its range is complete ends the command. At every end of the command its processes are killed
and their files are removed.
"""

import errno
import os
import selectors
import signal
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from types import FrameType

from tidemark.engine.wal_ranges import PlannedRange
from tidemark.io.host.disk import write_all
from tidemark.model.errors import ExitCode, TidemarkError
from tidemark.model.lsn import Lsn, format_lsn
from tidemark_ctl.loading import BLAS_THREADS
from tidemark_ctl.ranges.chunks import CHUNK_BYTES
from tidemark_ctl.ranges.messages import (
    RANGE_ORDER,
    REPORT,
    WORKER_START,
    DecodeRequest,
    RangeOrder,
    Report,
    ReportKind,
    WorkerStart,
)
from tidemark_ctl.ranges.range_output import worker_command

TEMPORARY_BYTES_MAX = 1 << 30  # of all chunks that wait to be printed
END_S = 5.0  # for a killed process to end
TERMINATED = 143  # 128 + SIGTERM, a shell's exit code
COPY_BYTES = 1 << 20


class RangeFailed(TidemarkError):
    """An error of a decoding process, with its message, hint and exit code."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.text, hint=report.hint)
        self.exit_code = ExitCode(report.exit_code)


class WorkerDied(TidemarkError):
    """A decoding process that ended before its range was complete."""

    hint = "the output is incomplete; if the kernel killed the process, see its log: use fewer --jobs for less memory"


class _DecodingProcess:
    """A decoding process, as the command sees it."""

    def __init__(self, started: WorkerStart) -> None:
        self._process = subprocess.Popen(
            worker_command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            pass_fds=(started.output,),
            process_group=0,  # an interrupt from the terminal is the command's alone, which ends its processes
            env={**os.environ, BLAS_THREADS: "1"},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders, self.reports = self._process.stdin, self._process.stdout
        self._rest = b""
        self.busy_with: PlannedRange | None = None
        self._send(WORKER_START.write(started))

    def decode(self, number: int, part: PlannedRange) -> None:
        """Give it a range."""
        self.busy_with = part
        self._send(RANGE_ORDER.write(RangeOrder(number, part)))

    def print_rest(self, number: int) -> None:
        """Let it write the rest of its range to the output."""
        self._send(RANGE_ORDER.write(RangeOrder(number, is_next=True)))

    def free_chunk(self) -> None:
        """Permit another chunk."""
        self._send(RANGE_ORDER.write(RangeOrder()))

    def _send(self, order: bytes) -> None:
        with suppress(BrokenPipeError):  # its end shows where its reports are read
            write_all(self._orders.fileno(), order + b"\n")

    def read(self) -> Iterator[Report]:
        """Yield the reports that have arrived; raise `WorkerDied` at its end."""
        content = os.read(self.reports.fileno(), 1 << 16)
        if not content:
            raise WorkerDied(self._described_end())
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            yield REPORT.read(line)

    def _described_end(self) -> str:
        code = self._process.wait(END_S)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        part = self.busy_with
        doing = "" if part is None else f" while it decoded {_described(part)}"
        return f"decoding process {self._process.pid} {how}{doing}"

    def kill(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._orders.close()
        self.reports.close()


def _described(part: PlannedRange) -> str:
    begin = "the beginning" if part.from_lsn is None else format_lsn(part.from_lsn)
    return f"{begin} to {'the end' if part.to_lsn is None else format_lsn(part.to_lsn)}"


class RangePool:
    """Decodes ranges with several processes, and copies their output to a descriptor."""

    def __init__(self, request: DecodeRequest, folder: Path, map_file: Path, *, output: int) -> None:
        self._request = request
        self._folder = folder
        self._map_file = map_file
        self._output = output
        self._chunks: dict[int, list[tuple[_DecodingProcess, Path]]] = defaultdict(list)  # by range, to be printed
        self._done: dict[int, Report] = {}
        self._printed = 0  # ranges
        self._processes: dict[int, _DecodingProcess] = {}  # that decode a range, by its number
        # NB: a terminal may stop a process of another group than the command's that writes to it.
        self._is_shared = not os.isatty(output)

    def run(
        self,
        ranges: Sequence[PlannedRange],
        jobs: int,
        note: Callable[[str], None],
        reached: Callable[[Lsn], None],
    ) -> Sequence[Report]:
        """Print all ranges; return the report of each."""
        waiting = enumerate(ranges)
        with ExitStack() as stack, selectors.DefaultSelector() as selector:
            shared = os.dup(self._output)  # another number: a process's own standard output is its reports
            stack.callback(os.close, shared)
            for number, part in islice(waiting, jobs):
                with _signals_blocked():
                    process = self._start(jobs, shared)
                    stack.callback(process.kill)
                selector.register(process.reports, selectors.EVENT_READ, process)
                self._decode(process, number, part)
            while self._printed < len(ranges):
                for key, _ in selector.select():
                    process = key.data
                    assert isinstance(process, _DecodingProcess)
                    for report in process.read():
                        self._take(process, report, note)
                        if report.kind is ReportKind.DONE:
                            process.busy_with = None
                            for number, part in islice(waiting, 1):
                                self._decode(process, number, part)
                self._print(reached)
        return [self._done[number] for number in range(len(ranges))]

    def _decode(self, process: _DecodingProcess, number: int, part: PlannedRange) -> None:
        self._processes[number] = process
        process.decode(number, part)
        if number == self._printed:
            self._share_output()

    def _share_output(self) -> None:
        """Let the process of the range whose turn it is write the rest of it."""
        process = self._processes.get(self._printed)
        if self._is_shared and process is not None and self._printed not in self._done:
            process.print_rest(self._printed)

    def _start(self, jobs: int, shared: int) -> _DecodingProcess:
        chunks_max = max(2, TEMPORARY_BYTES_MAX // jobs // CHUNK_BYTES)
        return _DecodingProcess(WorkerStart(self._request, str(self._map_file), str(self._folder), chunks_max, shared))

    def _take(self, process: _DecodingProcess, report: Report, note: Callable[[str], None]) -> None:
        if report.kind is ReportKind.CHUNK:
            self._chunks[report.number].append((process, Path(report.text)))
        elif report.kind is ReportKind.NOTE:
            note(report.text)
        elif report.kind is ReportKind.CLOSED:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        else:
            self._done[report.number] = report

    def _print(self, reached: Callable[[Lsn], None]) -> None:
        """Print what is next in order; raise the error of the first range that has one."""
        while True:
            number = self._printed
            for process, path in self._chunks.pop(number, ()):
                _copy(path, self._output)
                path.unlink()
                process.free_chunk()
            ended = self._done.get(number)
            if ended is None:
                return
            if ended.kind is ReportKind.ERROR:
                raise RangeFailed(ended)
            del self._processes[number]
            self._printed += 1
            reached(ended.decoded_lsn)
            self._share_output()


def _copy(path: Path, output: int) -> None:
    with path.open("rb", buffering=0) as file:
        try:
            while os.sendfile(output, file.fileno(), None, CHUNK_BYTES):
                pass
        except OSError as error:
            if error.errno != errno.EINVAL:  # an output that is opened for appending
                raise
        while content := file.read(COPY_BYTES):
            write_all(output, content)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Delay SIGTERM and SIGINT, so that no process exists that is not known yet."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def cleaning_up_at_sigterm() -> Iterator[None]:
    """End by an exception at SIGTERM, so that processes and files are removed."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
