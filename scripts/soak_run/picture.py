"""Draws the picture of a soak from its CSV file."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.bench.pictures.curves import Curve, Panel, svg

Row = Mapping[str, str]
MINUTE_S = 60
# For each panel its title, and the curves' names with their columns.
PANELS: Mapping[str, Mapping[str, str]] = {
    "Resident memory, MB (with mapped files)": {
        "JVM": "jvm_rss_mb",
        "pipeline's driver": "driver_rss_mb",
        "Python helpers": "helpers_rss_mb",
        "sidecar": "sidecar_rss_mb",
        "archiver": "archiver_rss_mb",
    },
    "The JVM by its own account, MB": {
        "resident, anonymous": "jvm_anonymous_mb",
        "heap, committed": "jvm_heap_committed_mb",
        "heap, used": "jvm_heap_used_mb",
        "beside the heap, committed": "jvm_native_mb",
        "of it metaspace": "jvm_metaspace_mb",
        "of it compiled code": "jvm_code_mb",
    },
    "Anonymous memory of the others, MB": {
        "pipeline's driver": "driver_anonymous_mb",
        "Python helpers": "helpers_anonymous_mb",
        "sidecar": "sidecar_anonymous_mb",
        "archiver": "archiver_anonymous_mb",
    },
    "Open descriptors": {
        "JVM": "jvm_descriptors",
        "pipeline's driver": "driver_descriptors",
        "Python helpers": "helpers_descriptors",
        "sidecar": "sidecar_descriptors",
        "archiver": "archiver_descriptors",
    },
    "Threads": {
        "JVM": "jvm_threads",
        "pipeline's driver": "driver_threads",
        "Python helpers": "helpers_threads",
        "sidecar": "sidecar_threads",
        "archiver": "archiver_threads",
    },
    "Files": {"state": "state_files", "lake": "lake_files", "spool": "spool_files"},
    "Disk, MB": {"state": "state_mb", "lake": "lake_mb", "spool": "spool_mb"},
    "Logs of all processes, kB": {"logs": "log_kb"},
}


def draw(source: Path, picture: Path) -> None:
    """Draw the content of a CSV file."""
    with source.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    if len(rows) < 2:
        raise SystemExit(f"{source} has fewer than two samples")
    panels = [Panel(title, _curves(rows, curves)) for title, curves in PANELS.items()]
    minutes = float(rows[-1]["time_s"]) / MINUTE_S
    picture.parent.mkdir(parents=True, exist_ok=True)
    text = svg(f"A soak of {minutes:.0f} minutes", "minutes since the first copy; at the right the last value", panels)
    picture.write_text(text, encoding="utf-8")


def _curves(rows: Sequence[Row], columns: Mapping[str, str]) -> list[Curve]:
    """Return the curves with values: a JVM that does not answer has none."""
    found = []
    for name, column in columns.items():
        points = [(float(row["time_s"]) / MINUTE_S, float(row[column])) for row in rows if row[column]]
        if points:
            found.append(Curve(name, points))
    return found
