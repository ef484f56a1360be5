"""The question before a command that removes something, and its answer on the terminal."""

import sys

import click

from tidemark.model.errors import ConfigError

ANSWER_BYTES_MAX = 100


class NotConfirmed(ConfigError):
    """The operator did not confirm."""

    hint = "nothing was changed: answer y at a terminal, or repeat the command with --yes"


def confirm(question: str, *, yes: bool, hint: str | None = None) -> None:
    """Ask, unless `yes`; raise `NotConfirmed` for another answer than y, also at the end of the input."""
    if yes:
        return
    click.echo(f"{question} [y/N]: ", nl=False, err=True)
    answer = sys.stdin.buffer.readline(ANSWER_BYTES_MAX) if sys.stdin is not None else b""
    if not answer.endswith(b"\n"):
        click.echo(err=True)
    if answer.strip().lower() not in (b"y", b"yes"):
        raise NotConfirmed("not confirmed" if answer else "not confirmed: the input has ended", hint=hint)
