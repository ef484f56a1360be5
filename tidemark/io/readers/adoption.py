"""A reader goes back to an earlier value, because its lake was restored from an older copy (`cdcctl lake adopt`).

Nothing else moves a reader back. The outbox must still have all values after that one; what is confirmed stays
confirmed, because markers and other hosts know it.
"""

from dataclasses import replace

from tidemark.io.state.outbox_table import UnknownReader
from tidemark.io.state.state_transaction import StateTransaction
from tidemark.model.errors import ConfigError
from tidemark.model.position import Sequence
from tidemark.wire.state.outbox_ledger import OutboxLedger
from tidemark.wire.state.readers import Reader, ReaderKind


class CannotAdopt(ConfigError):
    """A reader that cannot go back to a value."""

    hint = "cdcctl reader list shows the readers, cdcctl lake list the position of the lake"


class ValuesGone(CannotAdopt):
    """The outbox no longer has all values that a restored lake lacks."""

    hint = (
        "write into an empty lake with another reader (cdcctl spark run --lake NEW --reader NAME) after "
        "cdcctl table recopy of each table, or restore a newer copy"
    )


def behind(reader: Reader, applied: Sequence) -> bool:
    """Return whether a lake that contains the values up to `applied` lacks some that its reader confirmed."""
    return reader.start(applied) < max(reader.applied, reader.replayable)


def missing_text(ledger: OutboxLedger, applied: Sequence) -> str:
    """Return which values a lake that contains those up to `applied` lacks and the outbox does not have; "": none."""
    if applied >= ledger.trimmed:
        return ""
    return f"the outbox no longer has the values {applied + 1} to {ledger.trimmed}"


def adopt(transaction: StateTransaction, name: str, applied: Sequence) -> Reader:
    """Let reader `name` continue after value `applied`, a group end; raise `CannotAdopt` or `UnknownReader`."""
    readers, damaged = transaction.readers()
    if name not in readers or name in damaged:
        raise UnknownReader(f"reader {name!r} is not registered, or its record is damaged")
    reader, ledger = readers[name], transaction.ledger()
    if reader.kind is ReaderKind.QUERY:
        raise CannotAdopt(f"reader {name!r} belongs to a streaming query, not to a pipeline")
    if reader.is_lapsed:
        raise CannotAdopt(f"reader {name!r} has lapsed", hint=f"cdcctl reader resume {name}")
    if not behind(reader, applied):
        raise CannotAdopt(f"the lake lacks nothing that reader {name!r} has confirmed: there is nothing to adopt")
    if missing := missing_text(ledger, applied):
        raise ValuesGone(f"the lake contains the values up to {applied}, but {missing}")
    header = transaction.outbox.header(applied)
    if applied > ledger.trimmed and (header is None or not header.ends_group):
        raise CannotAdopt(f"value {applied} does not end a group of the outbox: the lake belongs to another outbox")
    adopted = replace(reader, applied=applied, replayable=applied, adoptions=reader.adoptions + 1)
    transaction.drop_reader(name)  # NB: a stored reader never moves back
    transaction.put_reader(name, adopted)
    return adopted
