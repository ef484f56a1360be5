"""Runs a program that prints one JSON object, for commands that need libraries which `cdcctl` does without."""

import json
import subprocess
import sys
from collections.abc import Collection

from tidemark.io.host.python_program import python_program
from tidemark.model.errors import ExitCode
from tidemark_ctl.termination import cleaning_up_at_sigterm
from tidemark_ctl.views.render import Tree

SIGNALLED = 128  # of a program that a signal ended, with the signal's number added: a shell's exit status


def report_of(module: str, *arguments: str) -> dict[str, Tree]:
    """Return the report of a program; without one, exit with the program's status.

    A signal to end waits until the program has removed its files.
    """
    report, _ = report_and_status(module, *arguments, statuses={ExitCode.SUCCESS})
    return report


def report_and_status(module: str, *arguments: str, statuses: Collection[int]) -> tuple[dict[str, Tree], int]:
    """Do the same for a program that ends with one of `statuses` after its report; return that one as well."""
    status, out = _run(python_program(module, *arguments))
    if status not in statuses or not out:
        sys.exit(status or ExitCode.INTERNAL)
    report: dict[str, Tree] = json.loads(out)
    return report, status


def _run(command: list[str]) -> tuple[int, str]:
    with cleaning_up_at_sigterm(), subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            out, _ = program.communicate()
        except BaseException:
            program.terminate()
            program.wait()
            raise
    status = program.returncode
    return (status if status >= 0 else SIGNALLED - status), out
