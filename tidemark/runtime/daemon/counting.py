"""What requests to the node and stage transitions count: a port, so that a command need not load the metrics.

A daemon passes its metrics (`tidemark.io.process.metrics`). A command exports none and passes `Uncounted`.
"""

from typing import Protocol


class Count(Protocol):
    """A number of events."""

    def inc(self) -> None:
        """Count one event."""


class CountByKind(Protocol):
    """A number of events of each kind."""

    def inc(self, kind: str) -> None:
        """Count one event of `kind`."""


class RequestCounts(Protocol):
    """What requests to the node count."""

    @property
    def markers_written(self) -> CountByKind:
        """Markers written, by `MarkerKind`."""

    @property
    def markers_failed(self) -> Count:
        """Markers that could not be written."""

    @property
    def segment_switches(self) -> Count:
        """Segment switches."""


class TransitionCounts(Protocol):
    """What stage transitions count."""

    @property
    def switches(self) -> CountByKind:
        """Transitions, by their event."""


class _Nothing:
    def inc(self, kind: str = "") -> None:
        """Count nothing."""


class Uncounted:
    """The counts of a program that exports none."""

    markers_written = markers_failed = segment_switches = switches = _Nothing()
