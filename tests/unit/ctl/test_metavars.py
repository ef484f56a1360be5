"""--help shows what to write as the value of each parameter, not the name of the function that parses it."""

from collections.abc import Iterator

import click
from tidemark_ctl.main import cdcctl

WORDS = {
    "ADDRESS",
    "BOOLEAN",
    "DSN",
    "FLOAT RANGE",
    "INTEGER RANGE",
    "LSN",
    "LSN_OR_TIME",
    "MORE",
    "NAME",
    "NUMBER",
    "ORIGIN",
    "PATH",
    "TABLE",
    "TEXT",
}


def test_each_metavar_is_a_known_word() -> None:
    found = {
        parameter.make_metavar(context).strip(".[]")
        for context in _commands(click.Context(cdcctl))
        for parameter in context.command.params
        if not isinstance(parameter.type, click.Choice)
    }
    assert found == WORDS


def _commands(context: click.Context) -> Iterator[click.Context]:
    group = context.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        below = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _commands(below)
        else:
            yield below
