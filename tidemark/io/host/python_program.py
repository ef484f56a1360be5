"""The command that runs one of our modules as a program."""

import sys


def python_program(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with the Python of this process.

    `-P`: otherwise `-m` imports from the working directory first, and any file there, such as `select.py`, or a folder
    `tidemark`, hides a module of that name.
    """
    return [sys.executable, "-P", "-m", module, *arguments]
