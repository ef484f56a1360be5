"""Commands by name: one line of help each, and the module that is imported only when the command runs.

A group of cdcctl is a `LazyGroup` over a table of entries, so that printing help imports no command, and a command
imports no other command. A command has options and help; what it does is a `Deferred` action of `tidemark_ctl.actions`,
unless that needs no more than the help (`tests/unit/ctl/test_what_commands_load`).
"""

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import update_wrapper
from importlib import import_module
from typing import Protocol

import click

BLAS_THREADS = "OPENBLAS_NUM_THREADS"


@dataclass(frozen=True, slots=True)
class Entry:
    """A command that is not loaded yet."""

    module: str  # below tidemark_ctl.commands
    summary: str  # its line in the group's help: the first sentence of the command's help
    attribute: str = ""  # the command's name in the module; empty: the same as the command


class LazyGroup(click.Group):
    """A group whose commands are loaded when they are used."""

    def __init__(
        self,
        name: str | None = None,
        *,
        entries: Mapping[str, Entry],
        callback: click.decorators.FC | None = None,
        params: list[click.Parameter] | None = None,
        context_settings: dict[str, object] | None = None,
        help: str | None = None,  # noqa: A002 - click's name
    ) -> None:
        super().__init__(name, callback=callback, params=params, context_settings=context_settings, help=help)
        self.entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        del ctx
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command."""
        del ctx
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        with loading():
            found = getattr(import_module(f"tidemark_ctl.commands.{entry.module}"), entry.attribute or cmd_name)
        assert isinstance(found, click.Command), cmd_name
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table alone."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.entries.items()])


class Action(Protocol):
    """What a command does."""

    def __call__(self, **options: object) -> object:
        """Do it."""


class Deferred:
    """The callback of a command: loads its action when the command runs, and passes the options."""

    def __init__(self, action: str, declared: Callable[[], None]) -> None:
        self._action = action
        update_wrapper(self, declared)

    def load(self) -> Action:
        """Return the action."""
        module, _, name = self._action.partition(".")
        with loading():
            found: Action = getattr(import_module(f"tidemark_ctl.actions.{module}"), name)
        return found

    def __call__(self, **options: object) -> None:
        """Run the action."""
        self.load()(**options)


def deferred(action: str) -> Callable[[Callable[[], None]], Deferred]:
    """Return a decorator for a function that has only the help of a command; `action`: MODULE.FUNCTION."""
    return lambda declared: Deferred(action, declared)


@contextmanager
def loading() -> Iterator[None]:
    """Load modules with garbage collection disabled: imports create no garbage, and modules stay in memory.

    pyarrow loads numpy, whose algebra library starts one thread per processor; Tidemark does not use that library.
    """
    is_ours = BLAS_THREADS not in os.environ
    if is_ours:
        os.environ[BLAS_THREADS] = "1"
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()
        if is_ours:
            del os.environ[BLAS_THREADS]
