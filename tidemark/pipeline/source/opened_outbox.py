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

OUTAGE_S = 60.0  # that a query outlives: the server is being restarted, or its host
_CONNECTED: dict[tuple[int, ServerAddress], "FlightOutbox"] = {}


def open_outbox(options: SourceOptions, *, is_started: bool = False) -> OutboxPort:
    """Return this process's reader of the outbox that the options name; a server may restart meanwhile.

    `is_started`: the query has reached the server before, so that the first request waits as well for one that is gone.
    The pipeline itself waits for its server, and shows that: what reads its offsets reports an outage at once.
    """
    if options.server is None:
        return open_once(options.folder())
    key = os.getpid(), options.server
    if key not in _CONNECTED:
        # NB: Spark starts three processes for a query, and Flight is most of what those at a state folder do not need.
        connect = import_module("tidemark.io.flight.flight_outbox").FlightOutbox
        outage_s = 0.0 if options.offsets_only else OUTAGE_S
        _CONNECTED[key] = connect(options.server, outage_s=outage_s, first_s=outage_s if is_started else 0.0)
    return _CONNECTED[key]
