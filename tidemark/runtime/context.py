"""The ports that every part of a capture needs, and the way in which a stop reaches it."""

from dataclasses import dataclass

from tidemark.io.host.logs import Log
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.state import StateStore


@dataclass(frozen=True, slots=True)
class CaptureContext:
    """The context of every capture of one process; its parts receive their settings beside it."""

    store: StateStore
    metrics: Metrics
    log: Log


class Stopped(Exception):
    """The capture stops: undelivered changes are delivered again after the restart."""
