"""Runs the demonstration; exits non-zero if a replica differs from its table, or a change is not in the log once."""

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from scripts.demo_run import server as embedded
from scripts.demo_run import workload as shop
from scripts.demo_run.demonstration import Demonstration, started
from scripts.demo_run.report import report
from scripts.demo_run.scenes import finish, play, wait_for_first_copy

CALM_S_DEFAULT = 40
WIDTH = 120  # if the output is not a terminal


def main() -> int:
    """Run the whole demonstration."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave everything running, and print where it is")
    parser.add_argument(
        "--seconds",
        type=float,
        default=CALM_S_DEFAULT,
        help="seconds between the scenes (default: %(default)s)",
    )
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that no process remains
    begun_s = time.monotonic()
    console = Console(soft_wrap=True)
    if not console.is_terminal:
        console.width = WIDTH
    folder = Path(tempfile.mkdtemp(prefix="tidemark-demo-"))
    with started(folder, console, keep=given.keep) as demonstration:
        _prepare(demonstration)
        demonstration.begin()
        wait_for_first_copy(demonstration)
        play(demonstration, given.seconds)
        finish(demonstration)
        right = report(demonstration)
        demonstration.print_line(f"{'identical' if right else 'DIFFERENT'}, after {time.monotonic() - begun_s:.0f} s")
    return 0 if right else 1


def _prepare(demonstration: Demonstration) -> None:
    rows = demonstration.create_database()
    demonstration.print_line(
        f"PostgreSQL {embedded.MAJOR} runs, with {rows:,} rows in {len(shop.TABLES)} tables of schema app"
    )


if __name__ == "__main__":
    sys.exit(main())
