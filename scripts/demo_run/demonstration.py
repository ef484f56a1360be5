"""The parts of the demonstration, their folders, and its progress."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console

from scripts.demo_run import configuration
from scripts.demo_run import server as embedded
from scripts.demo_run.archiving import archive_program
from scripts.demo_run.lag import DestinationLags, LagWatch, quantile
from scripts.demo_run.own_capture import ROLE, SPARK_S_MAX, SPARK_STARTED, OwnCapture
from scripts.demo_run.processes import DemoProcess, tail
from tidemark.io.process.metrics_ports import assigned_ports
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.io.state.state_views import StateMarks
from tidemark.model.lsn import Lsn, parse_lsn
from tidemark.model.mode import Stage

REPORT_INTERVAL_S = 5.0
LOOK_EVERY_S = 0.05
MIB = 1 << 20
OPERATOR_S_MAX = 90
SIDECAR_S_MAX = 60


@dataclass(kw_only=True)
class Demonstration(OwnCapture):
    """The processes, and how late their changes arrive."""

    console: Console
    store: StateStore = field(init=False)
    lag: LagWatch = field(init=False)
    ports: dict[str, int] = field(init=False)
    began_us: int = field(init=False)  # wall clock at second 0 of the output
    reported: list[tuple[int, str]] = field(default_factory=list)  # operations, with times in microseconds
    _open: ExitStack = field(default_factory=ExitStack)
    _reported_at_s: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.began_us = _now_us()

    @property
    def passed_s(self) -> float:
        """Seconds since the capture began."""
        return (_now_us() - self.began_us) / 1_000_000

    def begin(self) -> None:
        """Create the state as a user would, make the server archive, start everything; Spark first: it is slow."""
        dsn = self.server.dsn(ROLE)
        program = archive_program(self.server, self.folder / "program")
        configuration.write(self.config, dsn=dsn, group=self.server.group, spool=self.spool, program=program)
        self.create_state()
        assigned = assigned_ports(StateFolder(self.state))
        self.ports = asdict(assigned) if assigned is not None else {}
        self.print_line(
            "cdcctl init: catalogs seeded by plain SELECTs, no slot; the server archives by the line it printed"
        )
        self.store = StateStore.open(StateFolder(self.state))
        self._open.callback(self.store.close)
        self.lag = LagWatch(self.server.dsn(), lambda: self.stage.mode, outbox=self.delivered, lake=self.landed)
        self._open.callback(self.lag.close)
        self.pipeline.start()
        self.began_us = _now_us()
        self.until(lambda: self.pipeline.log_contains(SPARK_STARTED), "Spark's start", within_s=SPARK_S_MAX)
        self.print_line("Spark waits for changes; now the sidecar, the archiver and the workload start")
        self.began_us = _now_us()
        self.work.start()
        self.sidecar.start()
        self.until(lambda: self.store.marks().term is not None, "the sidecar delivers", within_s=SIDECAR_S_MAX)
        self.archiver.start()  # not earlier: without a sidecar it would take over

    def print_line(self, text: str) -> None:
        """Print one line."""
        self.console.print(text, highlight=False, markup=False)

    def scene(self, text: str) -> None:
        """Print an operation, and record it for the timeline."""
        self.reported.append((_now_us(), text))
        self.print_line(f"[{self.passed_s:5.1f} s] >> {text}")

    # --- progress

    @property
    def stage(self) -> Stage:
        """The stage of the capture."""
        return self.store.marks().stage

    def delivered(self) -> Lsn | None:
        """Return the commit up to which the outbox is complete."""
        return _delivered(self.store.marks())

    def landed(self) -> Lsn | None:
        """Return the LSN up to which the lake is complete, from the pipeline's report; None before its first batch."""
        try:
            reported: dict[str, str] = json.loads((self.state / "pipeline-spark.json").read_text())
        except FileNotFoundError:
            return None
        return parse_lsn(reported["lsn"])

    def behind(self) -> int:
        """Return the number of values in the outbox that the lake lacks."""
        marks = self.store.marks()
        return max((marks.ledger.head - reader.applied for reader in marks.readers.values()), default=marks.ledger.head)

    def status(self) -> str:
        """Return the present progress as one line."""
        marks = self.store.marks()
        delivers = marks.term.owner.role if marks.term is not None and marks.term.owner is not None else "nobody"
        size = f"{marks.ledger.byte_count / MIB:.1f} of {configuration.OUTBOX_BYTES / MIB:.0f} MiB"
        return (
            f"{self.work.rate():.0f} transactions/s; {marks.stage.value}, {delivers} delivers; outbox {size}, "
            f"lake {self.behind()} values behind; "
            f"lag to outbox {_recent(self.lag.outbox)}, to lake {_recent(self.lag.lake)}"
        )

    # --- waiting

    def run_for(self, seconds: float) -> None:
        """Let the demonstration run for this time."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self._look()

    def until(self, condition: Callable[[], bool], what: str, *, within_s: float) -> None:
        """Run until a condition is true; on a timeout end the demonstration and print the logs."""
        end_s = time.monotonic() + within_s
        while not condition():
            if time.monotonic() >= end_s:
                raise SystemExit(f"not within {within_s:.0f} s: {what}\n{self.status()}\n{self.ends_of_logs()}")
            self._look()

    def operate(self, *arguments: str) -> None:
        """Run a `cdcctl` command, and wait until it returns."""
        words = ("cdcctl", *arguments)
        self.scene(" ".join(words))
        command = DemoProcess(words[0], (*arguments, "--state", str(self.state)), self.folder / "cdcctl.log")
        command.start()
        self.until(lambda: command.ended is not None, f"{' '.join(words)} returns", within_s=OPERATOR_S_MAX)
        if command.ended:
            raise SystemExit(f"{' '.join(words)} exited with {command.ended}:\n{tail(command.log)}")

    def ends_of_logs(self) -> str:
        """Return the last lines of all logs."""
        logs = [(process.name, process.log) for process in self.processes] + [("server", self.server.log)]
        return "\n".join(f"--- {name} ({log})\n{tail(log)}" for name, log in logs)

    def _look(self) -> None:
        began_s = time.monotonic()
        for process in self.processes:
            process.check()
        if self.work.failure is not None:
            raise SystemExit(f"a client of the workload failed: {self.work.failure}\n{self.ends_of_logs()}")
        self.lag.look()
        if self.work.transactions and began_s - self._reported_at_s >= REPORT_INTERVAL_S:
            self._reported_at_s = began_s
            self.print_line(f"[{self.passed_s:5.1f} s] {self.status()}")
        time.sleep(max(0.0, LOOK_EVERY_S - (time.monotonic() - began_s)))

    # --- the end

    def stop(self) -> None:
        """Stop everything."""
        self._open.close()
        for process in reversed(self.processes):
            process.stop()
        self.server.stop()

    def print_locations(self) -> None:
        """Print where to find the running parts."""
        self._open.close()
        pids = " ".join(str(process.pid) for process in self.processes)
        logs = ", ".join(f"{process.log} (pid {process.pid})" for process in self.processes)
        metrics = ", ".join(f"http://127.0.0.1:{port}/metrics" for port in self.ports.values())
        self.print_line(
            f"everything runs on:\n  psql '{self.server.dsn()}'\n"
            f"  .venv/bin/cdcctl realtime status --state {self.state}\n"
            f"  lake: {self.lake}\n  metrics: {metrics}\n  logs: {logs}\n"
            f"  stop it: kill {pids}; {self.server.stop_command}"
        )


def _delivered(marks: StateMarks) -> Lsn | None:
    return marks.delivered.pointer.position.commit_lsn if marks.delivered is not None else None


def _recent(arrivals: DestinationLags) -> str:
    return f"{quantile(list(arrivals.recent_s), 0.5):.1f} s" if arrivals.recent_s else "-"


def _now_us() -> int:
    return time.time_ns() // 1000


@contextmanager
def started(folder: Path, console: Console, *, keep: bool) -> Iterator[Demonstration]:
    """Start the server; at the end stop and remove everything, or keep it and print where it is.

    After a failure the folder remains, because the error message names a log in it.
    """
    folder.chmod(0o755)  # the server's user must be able to reach its folders
    demonstration = Demonstration(folder=folder, server=embedded.start(folder), console=console)
    try:
        yield demonstration
    except BaseException:
        demonstration.stop()
        raise
    if keep:
        demonstration.print_locations()
        return
    demonstration.stop()
    shutil.rmtree(folder, ignore_errors=True)
