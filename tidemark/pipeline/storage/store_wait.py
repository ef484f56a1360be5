"""Waiting for the object store of a lake."""

import time
from collections.abc import Callable

from tidemark.io.host.logs import Log
from tidemark.io.process.disk_space import Gauge
from tidemark.pipeline.storage.outage_wait import OutageWait
from tidemark.pipeline.storage.store_errors import StoreUnavailable
from tidemark.pipeline.storage.stores import store_of


class StoreWait(OutageWait):
    """Whether the store of a lake answers, as far as the work has shown; used by one thread."""

    def __init__(self, root: str, seconds: Gauge, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__("object store", lambda: store_of(root).check(), (StoreUnavailable,), seconds, log, clock=clock)
