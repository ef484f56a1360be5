"""The options of the format `tidemark`: `spark.readStream.format("tidemark").option(...)`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeVar

from tidemark.io.flight.server_address import ServerAddress
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ConfigError
from tidemark.model.position import NO_SEQUENCE, Sequence
from tidemark.pipeline.source.starting_position import EARLIEST, FROM_EARLIEST, StartingPosition
from tidemark.wire.state.readers import is_reader_name

FORMAT = "tidemark"
ValueT = TypeVar("ValueT")
BATCH_BYTES = 64 << 20
POLL_TIMEOUT_MS = 100  # a trigger without new values costs Spark and its helper process 1.3 ms
POLL_TIMEOUT_MS_MAX = 60_000
_NAMES = (
    "state",
    "server",
    "tokenFile",
    "tlsRoots",
    "table",
    "columns",
    "reader",
    "required",
    "startingPosition",
    "maxBytesPerTrigger",
    "pollTimeoutMs",
    "schemaEvolution",
    "sharedWithGroup",
    "startingSequence",
    "offsetsOnly",
)
_OF_ROWS = ("columns", "schemaEvolution")


class RowColumns(Enum):
    """The columns of a table's rows."""

    AFTER = "after"  # those of the table, and those of the change
    BEFORE_AFTER = "before_after"  # the old and the new row as structs, and the columns of the change
    DEBEZIUM = "debezium"  # before, after, source, op, ts_ms
    RAW = "raw"  # the encoded values of the table


class Evolution(Enum):
    """What a query does when the columns of its table change."""

    FAIL = "fail"  # it ends, and does not start again with its checkpoint and other columns
    RESTART = "restart"  # it ends, and its next start has the new columns
    IGNORE = "ignore"  # it keeps its columns


@dataclass(frozen=True)
class SourceOptions:
    """The options of one query."""

    state: Path | None
    server: ServerAddress | None = None  # in place of a state folder
    table: str | None = None
    columns: RowColumns = RowColumns.AFTER
    reader: str | None = None
    required: bool = False  # the reader counts for the confirmed position, and never lapses
    start: StartingPosition = FROM_EARLIEST
    batch_bytes: int = BATCH_BYTES
    poll_timeout_ms: int = POLL_TIMEOUT_MS  # how long a trigger waits for new values, if there are none
    evolution: Evolution = Evolution.FAIL
    shared_with_group: bool = False
    # For a program that confirms to the outbox by itself, as the pipeline does.
    start_sequence: Sequence = NO_SEQUENCE
    offsets_only: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Parse the options, whose names Spark may pass in lower case; raise `ConfigError`."""
        names = {name.lower(): name for name in _NAMES}
        given = {("state" if name.lower() == "path" else name.lower()): value for name, value in options.items()}
        unknown = sorted(given.keys() - names.keys())
        if unknown:
            raise ConfigError(
                f"format {FORMAT!r} has no option {', '.join(unknown)}", hint=f"its options are {', '.join(_NAMES)}"
            )
        found = {names[name]: value for name, value in given.items()}
        if bool(found.get("state")) == bool(found.get("server")):
            raise ConfigError(
                f"format {FORMAT!r} requires the option state or the option server",
                hint='use option("state", FOLDER) on the host of the capture, option("server", ADDRESS) on others',
            )
        if "table" not in found and any(name in found for name in _OF_ROWS):
            raise ConfigError(f"the options {' and '.join(_OF_ROWS)} need the option table")
        if "reader" in found and not is_reader_name(found["reader"]):
            raise ConfigError(
                f"reader: {found['reader']!r} is not a valid name", hint="use 1 to 63 letters, digits, `-`, `_`, `.`"
            )
        return cls(
            Path(found["state"]) if found.get("state") else None,
            _server(found),
            found.get("table"),
            _parsed(found, "columns", RowColumns, RowColumns.AFTER),
            found.get("reader"),
            _parsed(found, "required", _flag, False),
            StartingPosition.parse(found.get("startingPosition", EARLIEST)),
            _parsed(found, "maxBytesPerTrigger", _size, BATCH_BYTES),
            _parsed(found, "pollTimeoutMs", _poll_timeout, POLL_TIMEOUT_MS),
            _parsed(found, "schemaEvolution", Evolution, Evolution.FAIL),
            _parsed(found, "sharedWithGroup", _flag, False),
            _parsed(found, "startingSequence", lambda text: Sequence(int(text)), NO_SEQUENCE),
            _parsed(found, "offsetsOnly", _flag, False),
        )

    def folder(self) -> StateFolder:
        """Return the state folder, if there is no server."""
        assert self.state is not None, "checked by `parse`"
        return StateFolder(self.state, self.shared_with_group)


def _server(given: Mapping[str, str]) -> ServerAddress | None:
    """Return the address of the server; its token and certificates are read here, on the driver."""
    if not given.get("server"):
        return None
    token, roots = (Path(given[name]) if given.get(name) else None for name in ("tokenFile", "tlsRoots"))
    return ServerAddress.parse(given["server"], token, roots)


def _parsed(given: Mapping[str, str], name: str, parse: Callable[[str], ValueT], default: ValueT) -> ValueT:
    if name not in given:
        return default
    try:
        return parse(given[name].lower())
    except ValueError as error:
        hint = "use a positive number, or true or false for a flag"
        if parse is _poll_timeout:
            hint = f"use milliseconds, 0 to {POLL_TIMEOUT_MS_MAX:,}"
        elif isinstance(default, Enum):
            hint = f"use one of {', '.join(str(one.value) for one in type(default))}"
        raise ConfigError(f"option {name}: {given[name]!r} is invalid", hint=hint) from error


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def _size(text: str) -> int:
    number = int(text)
    if number <= 0:
        raise ValueError(text)
    return number


def _poll_timeout(text: str) -> int:
    number = int(text)
    if not 0 <= number <= POLL_TIMEOUT_MS_MAX:
        raise ValueError(text)
    return number
