"""`cdcctl reader drop` and `cdcctl reader resume`: remove a reader of the outbox, or let a lapsed one continue."""

from pathlib import Path

import click

from tidemark_ctl.requests.reader_place import ReaderPlace


def drop_reader(
    state: Path | None, server: str | None, token_file: Path | None, tls_roots: Path | None, name: str
) -> None:
    """Run the command."""
    with ReaderPlace(state, server, token_file, tls_roots).opened() as register:
        register.drop(name)
    click.echo(f"reader {name} dropped")


def resume_reader(
    state: Path | None, server: str | None, token_file: Path | None, tls_roots: Path | None, name: str
) -> None:
    """Run the command."""
    with ReaderPlace(state, server, token_file, tls_roots).opened() as register:
        reader = register.resume(name)
    trimmed = "none was trimmed"
    if reader.skipped_to:
        trimmed = f"values {reader.skipped_from + 1} to {reader.skipped_to} were trimmed"
    click.echo(f"reader {name} continues after value {reader.applied}; {trimmed}")
