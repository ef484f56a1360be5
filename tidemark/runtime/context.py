"""The settings and ports that every part of a capture needs, and the way in which a stop reaches it."""

from dataclasses import dataclass

from tidemark.io.host.logs import Log
from tidemark.io.process.config import Config
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.state import StateStore


@dataclass(frozen=True, slots=True)
class CaptureContext:
    """What every capture of one process is made with."""

    config: Config
    store: StateStore
    metrics: Metrics
    log: Log


class Stopped(Exception):
    """The capture stops: what was to be delivered comes again after the restart."""
