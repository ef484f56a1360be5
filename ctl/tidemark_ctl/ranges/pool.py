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
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import islice
from pathlib import Path

from tidemark.engine.wal_ranges import PlannedRange
from tidemark.io.host.disk import write_all
from tidemark.io.process.stop_signals import STOP_SIGNALS
from tidemark.model.errors import ExitCode, TidemarkError
from tidemark.model.lsn import Lsn
from tidemark_ctl.ranges.chunks import CHUNK_BYTES
from tidemark_ctl.ranges.decoding_process import DecodingProcess
from tidemark_ctl.ranges.messages import Report, ReportKind
from tidemark_ctl.ranges.worker import WorkerStart

TEMPORARY_BYTES_MAX = 1 << 30  # of all chunks that wait to be printed
COPY_BYTES = 1 << 20


class RangeFailed(TidemarkError):
    """An error of a decoding process, with its message, hint and exit code."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.text, hint=report.hint)
        self.exit_code = ExitCode(report.exit_code)


class RangePool:
    """Decodes ranges with several processes, and copies their output to a descriptor."""

    def __init__(self, started: WorkerStart) -> None:
        """Print to the output of `started`, with which all processes begin."""
        self._started = started
        self._output = started.output
        self._chunks: dict[int, list[tuple[DecodingProcess, Path]]] = defaultdict(list)  # by range, to be printed
        self._done: dict[int, Report] = {}
        self._printed = 0  # ranges
        self._processes: dict[int, DecodingProcess] = {}  # that decode a range, by its number
        # NB: a terminal may stop a process of another group than the command's that writes to it.
        self._is_shared = not os.isatty(started.output)

    def run(
        self,
        ranges: Sequence[PlannedRange],
        jobs: int,
        note: Callable[[str], None],
        progress: AbstractContextManager[Callable[[Lsn], None]],
    ) -> Sequence[Report]:
        """Print all ranges; return the report of each. `progress` begins after the forks: it may start a thread."""
        waiting = enumerate(ranges)
        started: list[DecodingProcess] = []
        with ExitStack() as stack, selectors.DefaultSelector() as selector:
            for number, part in islice(waiting, jobs):
                with _signals_blocked():
                    process = DecodingProcess(self._started, started)
                    stack.callback(process.kill)
                started.append(process)
                selector.register(process.reports, selectors.EVENT_READ, process)
                self._decode(process, number, part)
            reached = stack.enter_context(progress)
            while self._printed < len(ranges):
                for key, _ in selector.select():
                    process = key.data
                    assert isinstance(process, DecodingProcess)
                    for report in process.read():
                        self._take(process, report, note)
                        if report.kind is ReportKind.DONE:
                            process.busy_with = None
                            for number, part in islice(waiting, 1):
                                self._decode(process, number, part)
                self._print(reached)
        return [self._done[number] for number in range(len(ranges))]

    def _decode(self, process: DecodingProcess, number: int, part: PlannedRange) -> None:
        self._processes[number] = process
        process.decode(number, part)
        if number == self._printed:
            self._share_output()

    def _share_output(self) -> None:
        """Let the process of the current range write the rest of it."""
        process = self._processes.get(self._printed)
        if self._is_shared and process is not None and self._printed not in self._done:
            process.print_rest(self._printed)

    def _take(self, process: DecodingProcess, report: Report, note: Callable[[str], None]) -> None:
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


def chunks_max(jobs: int) -> int:
    """Return how many chunks of each process may exist at once."""
    return max(2, TEMPORARY_BYTES_MAX // jobs // CHUNK_BYTES)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Delay SIGTERM and SIGINT, so that no process exists that is not known yet."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
