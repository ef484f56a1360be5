"""Logs as events: a constant lowercase sentence and fields with constant keys; never a column's value.

One line an event, to standard error: JSON for machines, or a console form for people. LSNs and positions are printed
as PostgreSQL prints them. Only the outer layers log; pure code returns reasons.
"""

import logging
import sys
from typing import TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

from tidemark.model.errors import TidemarkError
from tidemark.model.lsn import format_lsn

Log = FilteringBoundLogger
_LSN_SUFFIX = "lsn"  # a key that ends with this has an LSN


def configure_logs(form: str, level: str, stream: TextIO | None = None) -> None:
    """Set the form ("json", "console") and the lowest level of all logs of this process."""
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=False) if form == "console" else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _format_lsns,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=stream or sys.stderr),
        cache_logger_on_first_use=False,
    )


def get_log(role: str) -> Log:
    """Return the log of a process or thread; without `configure_logs`, warnings in console form.

    NB: structlog's default is standard output, which may be a command's result.
    """
    if not structlog.is_configured():
        configure_logs("console", "warning")
    log: Log = structlog.get_logger(role=role)
    return log


def describe_error(error: BaseException) -> dict[str, str]:
    """Return an error as fields: the text, the class, and the hint for the operator.

    Only the text of our own errors is included: that of another error may contain a row's values.
    """
    if not isinstance(error, TidemarkError):
        return {"error": "internal error", "kind": type(error).__name__}
    fields = {"error": str(error), "kind": type(error).__name__}
    return fields | {"hint": error.hint} if error.hint else fields


def _format_lsns(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    for key, value in event.items():
        if key.endswith(_LSN_SUFFIX) and isinstance(value, int):
            event[key] = format_lsn(value)
    return event
