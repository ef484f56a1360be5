"""The log of an embedded engine: Python's `logging`, logger `tidemark`, configured by the application or not at all."""

import logging

from tidemark.io.host.logs import is_lsn
from tidemark.model.lsn import format_lsn

LOGGER = "tidemark"


class LibraryLog:
    """Implements `Log` of `tidemark.io.host.logs`: the event, then its fields as `key=value`."""

    def __init__(self) -> None:
        self._logger = logging.getLogger(LOGGER)

    def info(self, event: str, /, **fields: object) -> object:
        """Log what happens in normal operation."""
        self._log(logging.INFO, event, fields)
        return None

    def warning(self, event: str, /, **fields: object) -> object:
        """Log what an operator should know, while the engine continues."""
        self._log(logging.WARNING, event, fields)
        return None

    def error(self, event: str, /, **fields: object) -> object:
        """Log what ends the engine, or needs an operator."""
        self._log(logging.ERROR, event, fields)
        return None

    def _log(self, level: int, event: str, fields: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            pairs = (f" {key}={_text(key, value)}" for key, value in fields.items())
            self._logger.log(level, "%s%s", event, "".join(pairs))


def _text(key: str, value: object) -> str:
    return format_lsn(value) if is_lsn(key) and isinstance(value, int) else str(value)
