"""The log of a command: warnings and errors, in the form of the command's other messages."""

import click

from tidemark.io.host.logs import is_lsn
from tidemark.model.lsn import format_lsn


class TerminalLog:
    """Prints to standard error (`tidemark.io.host.logs.Log`); a command's own output reports what is normal."""

    def info(self, event: str, /, **fields: object) -> None:
        """Print nothing."""

    def warning(self, event: str, /, **fields: object) -> None:
        """Print a warning."""
        _print(event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        """Print an error, after which the command continues."""
        _print(event, fields)


def _print(event: str, fields: dict[str, object]) -> None:
    hint = fields.pop("hint", "")
    reason = fields.pop("error", "")
    if reason:
        fields.pop("kind", None)
    texts = [
        f"{key}={format_lsn(value) if is_lsn(key) and isinstance(value, int) else value}"
        for key, value in fields.items()
    ]
    click.echo(": ".join(filter(None, ("cdcctl", event, str(reason), " ".join(texts)))), err=True)
    if hint:
        click.echo(f"  hint: {hint}", err=True)
