"""The commands that benchmarks run, and what one run costs."""

import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

TRIAL_TIMEOUT_S = 180
ROOT = Path(__file__).resolve().parents[3]
CDCCTL = (sys.executable, "-m", "tidemark_ctl")
LEAST_SHARE = 0.1  # minimum share of the work in a trial, to distinguish it from the start


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a trial; `inner_cpu_s` is what Tidemark reports, without its start."""

    wall_s: float
    cpu_s: float
    inner_cpu_s: float = math.nan


def init_state(dsn: str, database: str, state: Path) -> None:
    """Run `cdcctl init`."""
    run_command([*CDCCTL, "init", "--state", str(state), "--dsn", dsn, "--database", database])


def timed(command: Sequence[str], output: IO[bytes] | None = None, timeout_s: float = TRIAL_TIMEOUT_S) -> Cost:
    """Run a process, by default without its output; no other child process may end meanwhile."""
    before = _children_cpu_s()
    started = time.perf_counter()
    stdout = subprocess.DEVNULL if output is None else output
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=_environment(),
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=timeout_s,
        check=False,
    )
    wall_s = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr.decode(errors='replace')}")
    return Cost(wall_s, _children_cpu_s() - before)


def without_start(whole_s: float, start_s: float) -> float:
    """Return the difference; nan if it is too small to be significant."""
    left_s = whole_s - start_s
    return left_s if left_s > LEAST_SHARE * whole_s else math.nan


def run_command(command: Sequence[str]) -> bytes:
    """Run a program and return its output."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=TRIAL_TIMEOUT_S, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr.decode(errors='replace')}")
    return done.stdout


def _environment() -> dict[str, str]:
    """Return our environment, with byte code that is kept between trials, outside of the tree."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(ROOT / "build" / "bench-bytecode")}


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
