"""The messages of foreign errors: of Spark, with a Python traceback inside a Java exception, and of delta-rs."""

import errno
import os
import re

from tidemark.model.errors import TidemarkError, error_classes, restored_error

_LINE = re.compile(r"^\s*(?:[\w.]+: )*(tidemark(?:\.\w+)+): (.*)$", re.MULTILINE)

_CHAINED = re.compile(r"\s*\n\s*(?:\x1b\[\d+m)*↳(?:\x1b\[\d+m)*\s*")  # delta-rs's separator before a cause
_NUMBER = re.compile(r"\(os error (\d+)\)")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_OF_PROCESS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_OF_FILES = {errno.ENOENT, errno.ENOTDIR}  # a file that is lost, or that has replaced a folder


def named_failure(text: str) -> TidemarkError | None:
    """Return the Tidemark error that a failure's text names last, with its disposition, exit code and hint."""
    known = error_classes()
    named = [(known[name], message) for name, message in _LINE.findall(text) if name in known]
    if not named:
        return None
    kind, message = named[-1]
    return restored_error(kind, message.removesuffix(f": {kind.hint}") if kind.hint else message)


def first_reason(text: str) -> str:
    """Return the line of a foreign error with the reason: the first that names a Java exception, else the first."""
    lines = [line.strip(" \t:") for line in _CHAINED.sub(": ", text).splitlines() if line.strip()]
    return next((line for line in lines if "Exception: " in line), lines[0] if lines else "no reason given")


def error_numbers(text: str) -> set[int]:
    """Return the operating system's error numbers in the text of a delta-rs error."""
    return {int(number) for number in _NUMBER.findall(text)}


def is_of_host(error: BaseException) -> bool:
    """Return whether an error comes from the host (disk, permissions, descriptors, memory), not from a file."""
    numbers = error_numbers(str(error))
    if isinstance(error, OSError) and error.errno is not None:
        numbers.add(error.errno)
    return isinstance(error, MemoryError) or bool(numbers - _OF_FILES)


def is_of_process(error: BaseException) -> bool:
    """Return whether an error comes from a limit of the process or the host, which every table meets."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno in _OF_PROCESS):
            return True
        cause = cause.__cause__
    return bool(error_numbers(str(error)) & _OF_PROCESS)


def reports_full_disk(text: str) -> bool:
    """Return whether the text of a foreign error reports a full disk or an exhausted quota."""
    return any(number in error_numbers(text) or os.strerror(number) in text for number in _FULL)
