"""A decoding process, as the command sees it: a copy of the command, which gets orders and sends reports by two pipes.

It is forked rather than started: modules, the state's view and the catalog changes of the map are in memory already. A
start of Python with the same imports would cost 0.2 to 0.3 CPU seconds for each process.

NB: at that time the command has one thread, and that of jemalloc, which pyarrow starts with its import.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.context import ForkProcess

from tidemark.engine.wal_ranges import PlannedRange
from tidemark.io.host.disk import write_all
from tidemark.io.process.stop_signals import STOP_SIGNALS
from tidemark.model.errors import TidemarkError
from tidemark.model.lsn import format_lsn
from tidemark_ctl.ranges.messages import RANGE_ORDER, REPORT, RangeOrder, Report
from tidemark_ctl.ranges.worker import WorkerStart, work

END_S = 5.0  # for a process whose pipe is closed to end


class WorkerDied(TidemarkError):
    """A decoding process that ended before its range was complete."""

    hint = "the output is incomplete; if the kernel killed the process, see its log: use fewer --jobs for less memory"


class DecodingProcess:
    """One process and the command's ends of its pipes."""

    def __init__(self, started: WorkerStart, others: Sequence["DecodingProcess"]) -> None:
        """Start it; SIGTERM and SIGINT are blocked. It closes its copies of the pipes of `others`.

        Otherwise another process would not see the command's end.
        """
        orders, self._orders = os.pipe()
        self.reports, reports = os.pipe()
        self._ends = (self._orders, self.reports)
        ours = [*self._ends, *(end for other in others for end in other._ends)]  # noqa: SLF001 - of this class
        self._process = ForkProcess(target=_run, args=(started, orders, reports, ours))
        try:
            self._process.start()
        finally:
            os.close(orders)
            os.close(reports)
        self._rest = b""
        self.busy_with: PlannedRange | None = None

    def decode(self, number: int, part: PlannedRange) -> None:
        """Give it a range."""
        self.busy_with = part
        self._send(RangeOrder(number, part))

    def print_rest(self, number: int) -> None:
        """Let it write the rest of its range to the output."""
        self._send(RangeOrder(number, is_next=True))

    def free_chunk(self) -> None:
        """Permit another chunk."""
        self._send(RangeOrder())

    def _send(self, order: RangeOrder) -> None:
        with suppress(BrokenPipeError):  # its end shows where its reports are read
            write_all(self._orders, RANGE_ORDER.write(order) + b"\n")

    def read(self) -> Iterator[Report]:
        """Yield the reports that have arrived; raise `WorkerDied` at its end."""
        content = os.read(self.reports, 1 << 16)
        if not content:
            raise WorkerDied(self._described_end())
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            yield REPORT.read(line)

    def _described_end(self) -> str:
        self._process.join(END_S)
        code = self._process.exitcode
        if code is None:
            how = "closed its pipe"
        else:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        part = self.busy_with
        doing = "" if part is None else f" while it decoded {_described(part)}"
        return f"decoding process {self._process.pid} {how}{doing}"

    def kill(self) -> None:
        """End it."""
        self._process.kill()
        self._process.join()
        os.close(self._orders)
        os.close(self.reports)


def _run(started: WorkerStart, orders: int, reports: int, not_ours: Sequence[int]) -> None:
    """Be the process: an interrupt from the terminal is the command's alone, which ends its processes."""
    os.setpgid(0, 0)
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    for end in not_ours:
        os.close(end)
    work(started, orders, reports)


def _described(part: PlannedRange) -> str:
    begin = "the beginning" if part.from_lsn is None else format_lsn(part.from_lsn)
    return f"{begin} to {'the end' if part.to_lsn is None else format_lsn(part.to_lsn)}"
