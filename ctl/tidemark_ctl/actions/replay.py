"""`cdcctl replay`: asks a separate program, so that `cdcctl` needs no library for Delta tables."""

from pathlib import Path

from tidemark.io.host.extras import SPARK
from tidemark.model.commit_time import CommitTime
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import Lsn, format_lsn
from tidemark_ctl.requests.report_program import report_of
from tidemark_ctl.views.render import show

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
    show(report_of(*source, str(config or ""), table, at, target), as_json=as_json)
