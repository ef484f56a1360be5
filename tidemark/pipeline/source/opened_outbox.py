"""The outbox that a Spark process reads: of a state folder, or of a server; opened once for each process."""

import os
from importlib import import_module
from typing import TYPE_CHECKING

from tidemark.io.flight.server_address import ServerAddress
from tidemark.io.readers.opened_outbox import open_once
from tidemark.pipeline.source.options import SourceOptions
from tidemark.pipeline.source.outbox_port import OutboxPort

if TYPE_CHECKING:
    from tidemark.io.flight.flight_outbox import FlightOutbox

_CONNECTED: dict[tuple[int, ServerAddress], "FlightOutbox"] = {}


def open_outbox(options: SourceOptions) -> OutboxPort:
    """Return this process's reader of the outbox that the options name."""
    if options.server is None:
        return open_once(options.folder())
    key = os.getpid(), options.server
    if key not in _CONNECTED:
        # NB: Spark starts three processes for a query, and Flight is most of what those at a state folder do not need.
        _CONNECTED[key] = import_module("tidemark.io.flight.flight_outbox").FlightOutbox(options.server)
    return _CONNECTED[key]
