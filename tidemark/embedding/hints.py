"""Hints of errors for an application: a traceback does not show `TidemarkError.hint`, but it shows notes."""

from collections.abc import Iterator
from contextlib import contextmanager

from tidemark.model.errors import TidemarkError


@contextmanager
def noted_hints() -> Iterator[None]:
    """Add its hint, once, as a note to an error that is raised to the application."""
    try:
        yield
    except TidemarkError as error:
        note = f"hint: {error.hint}"
        if error.hint and note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise
