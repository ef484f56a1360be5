"""Errors of a query with their remedy on the same line: Spark keeps only the text of an error of a data source."""

from collections.abc import Iterator
from contextlib import contextmanager

from tidemark.model.errors import TidemarkError


@contextmanager
def stating_remedies() -> Iterator[None]:
    """Append the hint of an error to its message."""
    try:
        yield
    except TidemarkError as error:
        message = str(error)
        if error.hint and not message.endswith(error.hint):
            error.args = (f"{message}: {error.hint}",)
        raise
