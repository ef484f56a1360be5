"""`cdcctl reader drop` and `cdcctl reader resume`: remove a reader of the outbox, or let a lapsed one continue."""

from pathlib import Path

import click

from tidemark.io.state.outbox_table import UnknownReader
from tidemark_ctl.requests.confirmation import confirm
from tidemark_ctl.requests.reader_place import ReaderPlace, naming_readers, now_us

QUESTION = "Values that this reader has not read may then be trimmed. Drop it?"


def drop_reader(
    state: Path | None, server: str | None, token_file: Path | None, tls_roots: Path | None, name: str, *, yes: bool
) -> None:
    """Run the command."""
    with ReaderPlace(state, server, token_file, tls_roots).opened() as register, naming_readers():
        if not yes:
            known = register.known(now_us())
            if name not in {*known.readers, *known.damaged}:
                raise UnknownReader(f"reader {name!r} is not registered")
            confirm(QUESTION, yes=yes)
        register.drop(name)
    click.echo(f"reader {name} dropped")


def resume_reader(
    state: Path | None, server: str | None, token_file: Path | None, tls_roots: Path | None, name: str
) -> None:
    """Run the command."""
    with ReaderPlace(state, server, token_file, tls_roots).opened() as register, naming_readers():
        reader = register.resume(name)
    trimmed = "none was trimmed"
    if reader.skipped_to:
        trimmed = f"values {reader.skipped_from + 1} to {reader.skipped_to} were trimmed"
    click.echo(f"reader {name} continues after value {reader.applied}; {trimmed}")
