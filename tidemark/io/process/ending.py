"""How a daemon ends by an error: one event in its log, one exit code (I40).

The text of our own errors is logged. Of any other error, only its class and the lines of its traceback are logged,
since its text may contain a row's values: such an error is a bug, and its report needs the lines.
"""

import sys
import traceback
from pathlib import Path

from tidemark.io.host.logs import Log, describe_error
from tidemark.model.errors import ExitCode, InternalError, TidemarkError


def describe_ending(error: Exception) -> tuple[ExitCode, dict[str, str]]:
    """Return the exit code for an error, and the fields to log."""
    if isinstance(error, TidemarkError):
        code, fields = error.exit_code, describe_error(error)
    elif isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        code, fields = (
            ExitCode.UNEXPECTED,
            {
                "error": f"{where}{error.strerror or type(error).__name__}",
                "kind": type(error).__name__,
                "hint": "check permissions, free space and limits of the host",
            },
        )
    else:
        code, fields = (
            ExitCode.INTERNAL,
            {
                "error": "internal error",
                "kind": type(error).__name__,
                "hint": InternalError.hint,
            },
        )
    return code, fields


def report_ending(log: Log, event: str, error: Exception) -> ExitCode:
    """Log the error that ends this process; return its exit code."""
    code, fields = describe_ending(error)
    if code in (ExitCode.UNEXPECTED, ExitCode.INTERNAL):
        log.error(event, exit_code=int(code), **fields, passed=_passed(error))
    else:
        log.error(event, exit_code=int(code), **fields)
    return code


def _passed(error: BaseException) -> list[str]:
    """Return the code lines in the tracebacks of an error and its causes, innermost last: no values, no host paths."""
    passed: list[str] = []
    known: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in known:
        if known:
            passed.append(f"caused by {type(cause).__name__}")
        known.add(id(cause))
        frames = traceback.extract_tb(cause.__traceback__)
        passed += [f"{_module_of(frame.filename)}:{frame.lineno} in {frame.name}" for frame in frames]
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return passed


def _module_of(filename: str) -> str:
    """Return the path of a module below its import folder, or its base name if it has none."""
    path = Path(filename)
    roots = [Path(root).resolve() for root in sys.path]
    below = [path.relative_to(root).as_posix() for root in roots if path.is_relative_to(root)]
    return min(below, key=len, default=path.name)
