"""Logs as events: a constant lowercase sentence and fields with constant keys; never a column's value.

A program decides where its log goes (`tidemark.io.host.log_output`). Only the outer layers log; pure code returns
reasons.
"""

from importlib import import_module
from typing import Protocol

from tidemark.model.errors import TidemarkError


class Log(Protocol):
    """The log of a process or thread."""

    def info(self, event: str, /, **fields: object) -> object:
        """Log what happens in normal operation."""

    def warning(self, event: str, /, **fields: object) -> object:
        """Log what an operator should know, while the process continues."""

    def error(self, event: str, /, **fields: object) -> object:
        """Log what ends the process, or needs an operator."""


class LaterLog:
    """A log that its first event opens, for programs that seldom log.

    Loading structlog takes a third of the time in which a helper of Spark loads the format `tidemark`.
    """

    def __init__(self, role: str) -> None:
        self._role = role

    def info(self, event: str, /, **fields: object) -> object:
        """Log what happens in normal operation."""
        return self._opened().info(event, **fields)

    def warning(self, event: str, /, **fields: object) -> object:
        """Log what an operator should know, while the process continues."""
        return self._opened().warning(event, **fields)

    def error(self, event: str, /, **fields: object) -> object:
        """Log what ends the process, or needs an operator."""
        return self._opened().error(event, **fields)

    def _opened(self) -> Log:
        log: Log = import_module("tidemark.io.host.log_output").get_log(self._role)
        return log


def is_lsn(key: str) -> bool:
    """Return whether a field with this key has an LSN, if it is a number."""
    return key.endswith("lsn")


def describe_error(error: BaseException) -> dict[str, str]:
    """Return an error as fields: the text, the class, and the hint for the operator.

    Only the text of our own errors is included: that of another error may contain a row's values.
    """
    if not isinstance(error, TidemarkError):
        return {"error": "internal error", "kind": type(error).__name__}
    fields = {"error": str(error), "kind": type(error).__name__}
    return fields | {"hint": error.hint} if error.hint else fields


def describe_raised(error: BaseException, by: str) -> dict[str, str]:
    """Return an error that code of the application may have raised as fields; `by`: a function of that code.

    Only the text of our own errors is included: that of another error may contain a row's values.
    """
    if isinstance(error, TidemarkError):
        return describe_error(error)
    hint = "the error is in this function; its text is not logged, since it may contain values of rows"
    return {"error": f"raised by {by}", "kind": type(error).__name__, "hint": hint}
