"""`cdcctl replay`: asks a separate program, so that `cdcctl` needs no library for Delta tables."""

import json
import subprocess
import sys
from pathlib import Path

from tidemark.io.host.extras import SPARK
from tidemark.model.commit_time import CommitTime
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import Lsn, format_lsn
from tidemark_ctl.views.render import Tree, show

PROGRAM = "tidemark.pipeline.replay.program"


def replay(
    lake: str, config: Path | None, *, table: str, moment: Lsn | CommitTime, target: Path, as_json: bool
) -> None:
    """Run the command."""
    SPARK.require()
    at = str(moment) if isinstance(moment, CommitTime) else format_lsn(moment)
    command = [sys.executable, "-m", PROGRAM, lake, str(config or ""), table, at, str(target)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != ExitCode.SUCCESS or not done.stdout:
        sys.exit(done.returncode or ExitCode.INTERNAL)
    report: dict[str, Tree] = json.loads(done.stdout)
    show(report, as_json=as_json)
