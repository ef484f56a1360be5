"""`cdcctl lake`: asks a separate program, so that `cdcctl` needs no library for Delta tables."""

import sys
from pathlib import Path

from tidemark.io.host.extras import SPARK
from tidemark.model.errors import ExitCode
from tidemark_ctl.requests.report_program import report_and_status
from tidemark_ctl.views.lake_tables import check_tree, description_tree, list_tree, without_dropped
from tidemark_ctl.views.render import Tree, show

PROGRAM = "tidemark.pipeline.landing.lake_reports"


def list_tables(lake: str, config: Path | None, *, present: bool, as_json: bool) -> None:
    """Run the command."""
    report, _ = lake_report("list", lake, config)
    report = without_dropped(report) if present else report
    show(report if as_json else list_tree(report), as_json=as_json)


def describe(lake: str, config: Path | None, *, table: str, as_json: bool) -> None:
    """Run the command."""
    report, _ = lake_report("describe", lake, config, table)
    show(report if as_json else description_tree(report), as_json=as_json)


def check(lake: str, config: Path | None, *, read_files: bool, as_json: bool) -> None:
    """Run the command."""
    report, status = lake_report("check", lake, config, *(["--read-files"] if read_files else []))
    show(report if as_json else check_tree(report), as_json=as_json)
    sys.exit(status)


def lake_report(what: str, lake: str, config: Path | None, *arguments: str) -> tuple[dict[str, Tree], int]:
    """Return the program's report and exit status; if it has no report, end with its status and message."""
    SPARK.require()
    statuses = {ExitCode.SUCCESS, ExitCode.UNEXPECTED}
    return report_and_status(PROGRAM, what, lake, str(config or ""), *arguments, statuses=statuses)
