"""Copies of the tree in which mutants are tested, and test runs in them.

A run is a child of this process, forked after the libraries were imported, because imports take most of the time of a
short run.
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import hypothesis
import pytest

MEMORY_BYTES_MAX = 8 << 30  # a mutant may loop and allocate without end; a test of delta-rs on a long log reserves 4 GB
INTERRUPTED_S = 20.0  # time for a test to stop its servers
OUTPUT = "mutate.log"
_MEMORY = Path("/dev/shm")
_PRELOADED = (
    "pyarrow",
    "lmdb",
    "psycopg",
    "msgspec",
    "prometheus_client",
    "structlog",
)
_TREES = ("tidemark", "sidecar", "archiver", "ctl", "tests", "scripts", "pyspark_tidemark")
_PATHS = ("", "sidecar", "archiver", "ctl")  # where packages are found in a tree


class MutantOutcome(Enum):
    """The outcome for a mutant."""

    KILLED = "killed"
    HUNG = "hung"
    SURVIVED = "survived"


def preload() -> None:
    """Import the libraries of all tests, but nothing of the tree."""
    for name in _PRELOADED:
        __import__(name)


@dataclass(slots=True)
class Tree:
    """A copy of the tree."""

    root: Path

    @classmethod
    def copy(cls, source: Path, root: Path, *, interpreted: bool) -> "Tree":
        """Copy the files that git lists, and the compiled modules unless the copy is to be interpreted."""
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=source,
            check=True,
            stdout=subprocess.PIPE,
        ).stdout.decode()
        names = [name for name in listed.split("\0") if name and (source / name).is_file()]
        if not interpreted:
            names += [str(path.relative_to(source)) for part in _TREES for path in (source / part).rglob("*.so")]
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, root / name)
        subprocess.run([sys.executable, "-m", "compileall", "-qq", *_TREES], cwd=root, check=False)
        return cls(root)

    def write(self, module: str, source: bytes) -> None:
        """Change a module and remove its compiled form: a file of equal size and time would count as unchanged."""
        path = self.root / module
        path.write_bytes(source)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()

    def output(self) -> str:
        """Return the output of the last run."""
        return (self.root / OUTPUT).read_text(errors="replace")


class MutantRun:
    """A test run in a tree: a process group."""

    def __init__(self, tree: Tree, tests: tuple[str, ...], cpu_s: float, timeout_s: float) -> None:
        """`cpu_s` bounds an endless loop, `timeout_s` an endless wait: other processes may use the machine, too."""
        self.tree = tree
        self._ends_s = time.monotonic() + timeout_s
        self._was_interrupted = False
        # In memory if possible: a shared disk slows every sync. A short path, because socket paths are limited.
        self._temporary = Path(tempfile.mkdtemp(prefix="tm", dir=_MEMORY if _MEMORY.is_dir() else None))
        self._temporary.chmod(0o755)  # servers run as another user
        self._pid = os.fork()
        if self._pid == 0:
            _test(tree.root, tests, self._temporary, int(cpu_s))

    def poll(self) -> tuple[MutantOutcome, float] | None:
        """Return the outcome and the CPU time; None while it runs."""
        pid, status, usage = os.wait4(self._pid, os.WNOHANG)
        now_s = time.monotonic()
        if pid == 0:
            if now_s > self._ends_s:
                self._interrupt()
            return None
        self._stop_rest()
        used_s = usage.ru_utime + usage.ru_stime
        if self._was_interrupted or os.WIFSIGNALED(status):
            return MutantOutcome.HUNG, used_s
        return MutantOutcome.SURVIVED if status == 0 else MutantOutcome.KILLED, used_s

    def _interrupt(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL if self._was_interrupted else signal.SIGINT)
        self._was_interrupted = True
        self._ends_s = time.monotonic() + INTERRUPTED_S

    def _stop_rest(self) -> None:
        """Kill the rest of the run's process group, and servers, which have separate groups; remove its files."""
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        for path in self._temporary.rglob("postmaster.pid"):
            with suppress(ProcessLookupError, ValueError, OSError):
                os.kill(int(path.read_text().split()[0]), signal.SIGQUIT)
        shutil.rmtree(self._temporary, ignore_errors=True)


def _test(root: Path, tests: tuple[str, ...], temporary: Path, cpu_s: int) -> None:
    """Run the tests in this process, which ends with it."""
    status = 70
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
        os.chdir(root)
        output = os.open(OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        packages = os.pathsep.join(str(root / folder) for folder in _PATHS)
        os.environ.update(PYTHONPATH=packages, PYTHONDONTWRITEBYTECODE="1", TMPDIR=str(temporary))
        sys.dont_write_bytecode = True
        for name in [name for name in sys.modules if name.partition(".")[0].startswith(_TREES)]:
            del sys.modules[name]
        sys.path[0] = str(root)
        hypothesis.settings.register_profile(
            "mutation", phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate), database=None
        )
        hypothesis.settings.load_profile("mutation")  # inherited by the tests' profile: failures are not shrunk
        arguments = [
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore::pytest.PytestAssertRewriteWarning",
            "--no-header",
        ]
        status = int(pytest.main([*arguments, "--tb=line", *tests]))
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001 - the child ends here after any error
        traceback.print_exc()
    finally:
        os._exit(status)
