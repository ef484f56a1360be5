"""`cdcctl replay`: asks a separate program, so that `cdcctl` needs no library for Delta tables."""

import json
import subprocess
import sys
from pathlib import Path

from tidemark.io.host.extras import SPARK
from tidemark.model.commit_time import CommitTime
from tidemark.model.errors import ConfigError, ExitCode
from tidemark.model.lsn import Lsn, format_lsn
from tidemark_ctl.termination import cleaning_up_at_sigterm
from tidemark_ctl.views.render import Tree, show

FROM_LOG = "tidemark.pipeline.replay.program"
FROM_BACKUP = "pyspark_tidemark.backup_replay"


def replay(
    lake: str | None,
    base_backup: Path | None,
    archive: Path | None,
    config: Path | None,
    *,
    table: str,
    moment: Lsn | CommitTime,
    target: str,
    as_json: bool,
) -> None:
    """Run the command."""
    if (lake is None) == (base_backup is None):
        raise ConfigError(
            "the source of the rows is required: --lake or --base-backup", hint="give exactly one of the two options"
        )
    if archive is not None and base_backup is None:
        raise ConfigError("--archive requires --base-backup", hint="omit it: a lake has all changes")
    SPARK.require()
    at = str(moment) if isinstance(moment, CommitTime) else format_lsn(moment)
    source = [FROM_LOG, str(lake)] if base_backup is None else [FROM_BACKUP, str(base_backup), str(archive or "")]
    status, out = _run([sys.executable, "-m", *source, str(config or ""), table, at, target])
    if status != ExitCode.SUCCESS or not out:
        sys.exit(status or ExitCode.INTERNAL)
    report: dict[str, Tree] = json.loads(out)
    show(report, as_json=as_json)


def _run(command: list[str]) -> tuple[int, str]:
    """Return exit status and output of the program; a signal to end waits until it has removed its files."""
    with cleaning_up_at_sigterm(), subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            out, _ = program.communicate()
        except BaseException:
            program.terminate()
            program.wait()
            raise
    return program.returncode, out
