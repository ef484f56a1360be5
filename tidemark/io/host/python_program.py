"""The command that runs one of our modules as a program."""

import os
import sys
from typing import NoReturn

_COMMAND = "TIDEMARK_STARTED_AS"  # the command that a program replaced, for its usage


def python_program(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with the Python of this process.

    `-P`: otherwise `-m` imports from the working directory first, and any file there, such as `select.py`, or a folder
    `tidemark`, hides a module of that name.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def replace_process(command: list[str], started_as: str) -> NoReturn:
    """Run a command of `python_program` in place of this process; its usage names the one that a person entered."""
    os.execve(sys.executable, command, {**os.environ, _COMMAND: started_as})  # noqa: S606 - signals reach it


def program_name(module: str) -> str:
    """Return the command by which a person started this process, which runs `module`."""
    return os.environ.get(_COMMAND, f"python -m {module}")
