"""Runs a capture for hours and samples its use of resources; writes a CSV file, and draws it."""

import argparse
import csv
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path

from scripts.soak_run import jvm
from scripts.soak_run.capture import SoakCapture, started
from scripts.soak_run.picture import draw
from scripts.soak_run.sampling import Used, family, files, used

ROOT = Path(__file__).resolve().parents[2]
MINUTES_DEFAULT, EVERY_S_DEFAULT = 120.0, 5.0
JVM_EVERY = 6  # samples between two requests to the JVM: each pauses it for a moment
KIB = 1024
GROUPS = ("sidecar", "archiver", "driver", "jvm", "helpers")
FOLDERS = ("state", "lake", "spool")
COLUMNS = (
    "time_s",
    *(f"{group}_{each.name}" for group in GROUPS for each in fields(Used)),
    *(f"jvm_{column}" for column in jvm.COLUMNS),
    *(f"{folder}_{what}" for folder in FOLDERS for what in ("files", "mb")),
    "log_kb",
)


def sample(capture: SoakCapture, begun_s: float, *, asks_jvm: bool) -> dict[str, float]:
    """Return one row."""
    pipeline = family(capture.pipeline.pid)
    groups = {
        "sidecar": family(capture.sidecar.pid).own,
        "archiver": family(capture.archiver.pid).own,
        "driver": pipeline.own,
        "jvm": pipeline.jvms,
        "helpers": pipeline.helpers,
    }
    row = {"time_s": round(time.monotonic() - begun_s, 1)}
    for group, pids in groups.items():
        row |= {f"{group}_{name}": round(value, 1) for name, value in asdict(used(pids)).items()}
    if asks_jvm and pipeline.jvms:
        row |= {f"jvm_{name}": round(value, 1) for name, value in jvm.memory(pipeline.jvms[0]).items()}
    for folder in FOLDERS:
        count, size_mb = files(getattr(capture, folder))
        row |= {f"{folder}_files": count, f"{folder}_mb": round(size_mb, 1)}
    return row | {"log_kb": round(capture.log_bytes / KIB, 1)}


def samples(capture: SoakCapture, minutes: float, every_s: float) -> Iterator[dict[str, float]]:
    """Yield a row at each interval until the time is over."""
    begun_s = time.monotonic()
    number = 0
    while (due_s := number * every_s) <= minutes * 60:
        time.sleep(max(0.0, begun_s + due_s - time.monotonic()))
        capture.check()
        yield sample(capture, begun_s, asks_jvm=number % JVM_EVERY == 0)
        number += 1


def main() -> int:
    """Read the arguments, run, draw."""
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES_DEFAULT, help="duration (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=0.0, help="transactions per second (default: none)")
    parser.add_argument(
        "--every", type=float, default=EVERY_S_DEFAULT, help="interval of samples in s (default: %(default)s)"
    )
    parser.add_argument("--driver-memory", help="heap of Spark's driver (default: that of the pipeline)")
    parser.add_argument("--csv", type=Path, default=ROOT / "build" / "soak.csv")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "pictures" / "soak.svg")
    parser.add_argument("--draw", type=Path, metavar="CSV", help="only draw these samples")
    given = parser.parse_args()
    if given.draw is not None:
        draw(given.draw, given.picture)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that no process remains
    options = ("--driver-memory", given.driver_memory) if given.driver_memory else ()
    given.csv.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="tidemark-soak-"))
    with started(folder, given.rate, options) as capture, given.csv.open("w", newline="") as out:
        print(f"everything runs, in {folder}; samples go to {given.csv}", flush=True)
        writer = csv.DictWriter(out, COLUMNS)
        writer.writeheader()
        for row in samples(capture, given.minutes, given.every):
            writer.writerow(row)
            out.flush()
    draw(given.csv, given.picture)
    print(f"drawn: {given.picture}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
