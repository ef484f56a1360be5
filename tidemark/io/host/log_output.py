"""The output of a program's log, one line an event, to standard error: JSON for machines, or a form for people.

LSNs and positions are printed as PostgreSQL prints them. `cdcctl` prints warnings only, without this module: loading
structlog takes longer than most of its commands.
"""

import logging
import sys
from typing import TextIO

import structlog
from structlog.typing import EventDict, WrappedLogger

from tidemark.io.host.logs import Log, is_lsn
from tidemark.model.lsn import format_lsn


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


def _format_lsns(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    for key, value in event.items():
        if is_lsn(key) and isinstance(value, int):
            event[key] = format_lsn(value)
    return event
