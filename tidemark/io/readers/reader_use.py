"""What may use a registered reader: the pipeline or the query that it belongs to, and of a query its newest run.

A second user of a reader would confirm values that the first one does not have, and the outbox would be trimmed.
"""

from dataclasses import replace

from tidemark.model.errors import ConfigError, Fenced
from tidemark.wire.state.readers import Reader, ReaderKind, is_reader_name

_OWNERS = {ReaderKind.PIPELINE: "a pipeline (cdcctl spark run)", ReaderKind.QUERY: "a streaming query"}
_OPTIONS = {ReaderKind.PIPELINE: "--reader", ReaderKind.QUERY: "the option reader"}


class OtherReaderKind(ConfigError):
    """A query with the name of a pipeline's reader, or a pipeline with the name of a query's."""


class ReaderTakenOver(Fenced):
    """A run of a query whose reader another run uses, which started later."""

    hint = "a reader is for one query, and for one stream of it: use another name with the option reader for each"


def check_name(name: str) -> None:
    """Raise `ConfigError` if no reader can have the name."""
    if not is_reader_name(name):
        raise ConfigError(f"not a reader's name: {name!r}", hint="1 to 63 letters, digits, `-`, `_`, `.`")


def check_kind(name: str, reader: Reader, kind: ReaderKind) -> None:
    """Raise `OtherReaderKind` if a reader belongs to a user of another kind."""
    if reader.kind not in (kind, ReaderKind.UNSTATED):
        raise OtherReaderKind(
            f"reader {name!r} belongs to {_OWNERS[reader.kind]}",
            hint=f"use another name with {_OPTIONS[kind]}; if the reader is not needed any more, "
            f"`cdcctl reader drop {name}` removes it",
        )


def used(name: str, reader: Reader, kind: ReaderKind, now_us: int) -> Reader:
    """Return a reader as its next user registers it; raise `OtherReaderKind`. A user of no kind changes nothing."""
    if kind is ReaderKind.UNSTATED:
        return reader
    check_kind(name, reader, kind)
    # NB: by the clock, because a reader that was dropped and registered again must not reuse numbers.
    run = max(reader.run + 1, now_us) if kind is ReaderKind.QUERY else reader.run
    return replace(reader, kind=kind, run=run)


def check_newest_run(name: str, reader: Reader, run: int) -> None:
    """Raise `ReaderTakenOver` if `run` is not the newest run of the query; 0: the run has no number."""
    if run not in (0, reader.run):
        raise ReaderTakenOver(f"another query, which started later, uses reader {name!r}")
