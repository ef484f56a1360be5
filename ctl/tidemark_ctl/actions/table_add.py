"""`cdcctl table add`: asks a separate program, so that `cdcctl` needs no library for Delta tables."""

from pathlib import Path

from tidemark.io.host.extras import SPARK
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.commit_time import CommitTime
from tidemark.model.lsn import Lsn, format_lsn
from tidemark_ctl.output.command_spill import folder_of_command
from tidemark_ctl.requests.report_program import report_of
from tidemark_ctl.views.render import show

PROGRAM = "pyspark_tidemark.earlier_changes"


def add(
    state: Path,
    *,
    archive: Path,
    lake: str,
    config: Path | None,
    reader: str,
    table: str,
    begin: Lsn | CommitTime,
    base_backup: Path | None,
    as_json: bool,
) -> None:
    """Run the command."""
    SPARK.require()
    at = str(begin) if isinstance(begin, CommitTime) else format_lsn(begin)
    with folder_of_command(StateFolder(state)) as spill:
        places = [str(state), str(archive), lake, str(config or ""), reader]
        report = report_of(PROGRAM, *places, table, at, str(spill), str(base_backup or ""))
    show(report, as_json=as_json)
