"""`cdcctl replay`: asks a separate program, so that `cdcctl` needs no library for Delta tables."""

import json
import subprocess
import sys
from pathlib import Path

from tidemark.io.host.extras import SPARK
from tidemark.model.commit_time import CommitTime
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import Lsn, format_lsn
from tidemark_ctl.termination import cleaning_up_at_sigterm
from tidemark_ctl.views.render import Tree, show

PROGRAM = "tidemark.pipeline.replay.program"


def replay(lake: str, config: Path | None, *, table: str, moment: Lsn | CommitTime, target: str, as_json: bool) -> None:
    """Run the command."""
    SPARK.require()
    at = str(moment) if isinstance(moment, CommitTime) else format_lsn(moment)
    status, out = _run([sys.executable, "-m", PROGRAM, lake, str(config or ""), table, at, target])
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
