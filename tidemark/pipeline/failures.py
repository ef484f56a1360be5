"""Our own errors, found again in what Spark tells of them: a Python traceback inside a Java exception's text."""

import re
from collections.abc import Iterator

from tidemark.model.errors import TidemarkError

_LINE = re.compile(r"^\s*(?:[\w.]+: )*(tidemark(?:\.\w+)+): (.*)$", re.MULTILINE)


def named_failure(text: str) -> TidemarkError | None:
    """Return the error of ours that a failure's text names last, with its disposition, exit code and hint."""
    known = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in _kinds(TidemarkError)}
    named = [(known[name], told) for name, told in _LINE.findall(text) if name in known]
    if not named:
        return None
    kind, told = named[-1]
    # NB: an error of this kind may want other arguments: what it says is known, so it is made as the root makes it.
    failure = kind.__new__(kind)
    TidemarkError.__init__(failure, told)
    return failure


def first_reason(text: str) -> str:
    """Return the line of a foreign error that says why: the first that names an exception of Java's, or the first."""
    lines = [line.strip(" \t:") for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "Exception: " in line), lines[0] if lines else "no reason given")


def _kinds(kind: type[TidemarkError]) -> Iterator[type[TidemarkError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _kinds(narrower)
