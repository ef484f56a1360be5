"""`cdcctl` as users run it: a separate process, with its output and its exit code."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

from tests.support.processes.forking import start_program
from tests.support.processes.waiting import wait_until
from tests.support.processes.written_lines import complete_lines
from tidemark.model.errors import ExitCode

PORTS = TemporaryDirectory(prefix="tm-ports-")  # of the states that these runs create; removed with the process
RUN_S = 300.0  # a longer run hangs; Spark takes 25 s on an idle machine
Program = Sequence[str]
OF_THIS_TREE: Program = (sys.executable, "-m", "tidemark_ctl")


@dataclass(frozen=True)
class Done:
    """A finished run."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()


def environment(**changes: str) -> dict[str, str]:
    """Return our environment without variables that would configure a run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "TIDEMARK_"))}
    return {**kept, "TIDEMARK_PORTS_FOLDER": PORTS.name, **changes}


def command(*arguments: str | Path, program: Program = OF_THIS_TREE) -> list[str]:
    """Return the command line of `cdcctl`."""
    return [*program, *map(str, arguments)]


def cdcctl(*arguments: str | Path, program: Program = OF_THIS_TREE, **variables: str) -> Done:
    """Run it to its end."""
    with TemporaryFile() as out, TemporaryFile() as err:
        process = start_program(command(*arguments, program=program), environment(**variables), out, err)
        try:
            code = process.wait(timeout=RUN_S)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return Done(code, out.read(), err.read().decode())


def succeeded(done: Done) -> Done:
    """Check that a run succeeded."""
    assert done.code == ExitCode.SUCCESS, done.err
    return done


def refused(done: Done, code: ExitCode, *said: str) -> None:
    """Check the code, that the message states the fault and its location, that a hint follows, and no other output."""
    assert done.code == code, f"{done.code}: {done.err}"
    message, hint = reported(done.err)
    for words in said:
        assert words in message, f"{words!r} is not in {message!r}"
    assert hint
    assert done.out == b""


def reported(err: str) -> tuple[str, str]:
    """Return message and hint, which are the last two lines; they contain nothing of Python's."""
    assert "Traceback" not in err
    message, hint = err.splitlines()[-2:]
    assert message.startswith("cdcctl: "), err
    assert hint.startswith("  hint: "), err
    return message, hint.removeprefix("  hint: ")


class Running:
    """An unfinished run; its output is in files."""

    def __init__(self, folder: Path, *arguments: str | Path, program: Program = OF_THIS_TREE, **variables: str) -> None:
        number = len(list(folder.glob("cdcctl-*.err")))
        self._out, self._err = folder / f"cdcctl-{number}.out", folder / f"cdcctl-{number}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = start_program(command(*arguments, program=program), environment(**variables), out, err)

    @property
    def out(self) -> list[str]:
        return complete_lines(self._out)

    @property
    def err(self) -> str:
        return self._err.read_text()

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until the run has made the condition true."""

        def holds() -> bool:
            if condition():
                return True
            assert self.process.poll() is None, f"ended before {what}: {self.process.returncode}\n{self.err[-4000:]}"
            return False

        wait_until(holds, what, within_s=RUN_S, reported=lambda: self.err[-4000:])

    def wait_for_err(self, text: str) -> None:
        """Wait until it prints `text` on standard error."""
        self.wait_for(lambda: text in self.err, repr(text))

    def wait_for_lines(self, count: int) -> list[str]:
        """Wait until it has printed this number of lines; return all."""
        self.wait_for(lambda: len(self.out) >= count, f"line {count}")
        return self.out

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Send a signal; return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=RUN_S)

    def ended(self) -> Done:
        """Wait for its end."""
        code = self.process.wait(timeout=RUN_S)
        return Done(code, self._out.read_bytes(), self.err)


@contextmanager
def running(
    folder: Path, *arguments: str | Path, program: Program = OF_THIS_TREE, **variables: str
) -> Iterator[Running]:
    """Start it; it is stopped at the end."""
    started = Running(folder, *arguments, program=program, **variables)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
            started.process.wait(timeout=RUN_S)


def contents(folder: Path) -> Mapping[str, bytes]:
    """Return every file below `folder`, for comparison; the lock file of LMDB's readers is omitted."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock.mdb"
    }
