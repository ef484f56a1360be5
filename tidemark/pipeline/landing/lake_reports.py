"""`python -m tidemark.pipeline.landing.lake_reports`: the program behind `cdcctl lake`; prints one JSON object.

    list LAKE CONFIG               the tables: folder, state, position, versions
    describe LAKE CONFIG TABLE     one table, its columns, and lines that read it in other programs
    check LAKE CONFIG              versions, files and positions of every table, against the positions of the lake

CONFIG: the configuration with the options of an object store, or empty. Of a lake of Iceberg tables there is no
description: programs read them by their catalog.

Nothing is written, and a running pipeline is not disturbed: a table may be ahead of what is printed.
"""

import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from tidemark.io.host.extras import ICEBERG
from tidemark.io.process.config_loading import load_config
from tidemark.model.errors import ExitCode, TidemarkError
from tidemark.pipeline.lake.lake_kind import has_catalog
from tidemark.pipeline.lake.report import LakeReport, OpenedLake, checked, described, listed
from tidemark.pipeline.storage.stores import open_lake


def _report(what: str, root: str, more: Sequence[str]) -> dict[str, LakeReport]:
    if what != "describe" and has_catalog(root):
        iceberg = _iceberg()
        report: dict[str, LakeReport] = (
            iceberg.listed(root) if what == "list" else iceberg.checked(root, reads_files=bool(more))
        )
        return report
    lake = OpenedLake(root)
    if what == "list":
        return listed(lake)
    return described(lake, lake.find(more[0])) if what == "describe" else checked(lake, reads_files=bool(more))


def _iceberg() -> ModuleType:
    ICEBERG.require()
    # NB: the extra is optional, so its packages are imported only here.
    return import_module("tidemark.pipeline.iceberg.report")


def main(arguments: Sequence[str]) -> int:
    """Print one report; return the exit status: 1 if a check found a fault."""
    what, root, config, *more = arguments
    try:
        open_lake(root, load_config(Path(config) if config else None, os.environ).lake)
        report = _report(what, root, more)
    except TidemarkError as error:
        sys.stderr.write(f"cdcctl: {error}\n" + (f"  hint: {error.hint}\n" if error.hint else ""))
        return error.exit_code
    sys.stdout.write(json.dumps(report, ensure_ascii=False) + "\n")
    return ExitCode.UNEXPECTED if report.get("faults") else ExitCode.SUCCESS


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # NB: Arrow's threads may still read ahead; destroying its C++ objects meanwhile occasionally ends in SIGABRT.
    os._exit(status)
