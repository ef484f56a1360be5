"""The capture as the pipeline uses it beside its outbox: of a state folder on this host, or of a server (`--server`).

`tidemark.io.readers.state_capture.StateCapture` and `tidemark.io.flight.server_capture.ServerCapture` implement it; one
suite of tests checks both (`test_capture_port`).
"""

from collections.abc import Mapping
from typing import Protocol

from tidemark.model.relation import Relation
from tidemark.pipeline.lake.positions.table_position import TableId
from tidemark.wire.capture_facts import CaptureFacts


class CapturePort(Protocol):
    """The facts of a capture for the pipeline, and the operator's requests to it; keys are those of `log_key`."""

    def facts(self) -> CaptureFacts:
        """Return what a pipeline must know about the capture."""
        ...

    def captured_tables(self) -> Mapping[TableId, Relation]:
        """Return the tables whose changes are delivered under their own name; raise `StateError`."""
        ...

    def accepted_breaks(self, reader: str) -> Mapping[str, str]:
        """Return the breaks that the operator accepted: the position before each, by the key of the log."""
        ...

    def resume_requests(self, reader: str) -> list[str]:
        """Return the keys of the tables whose resumption is requested."""
        ...

    def request_resume(self, reader: str, key: str) -> None:
        """Request that the table with this key is resumed."""
        ...

    def close_request(self, reader: str, key: str) -> None:
        """Remove a request, if there is one."""
        ...

    def progress(self, reader: str) -> bytes:
        """Return the last recorded progress of a pipeline; empty if there is none."""
        ...

    def record_progress(self, reader: str, content: bytes) -> None:
        """Record the progress of a pipeline, a JSON object, for `cdcctl status` and `cdcctl table`."""
        ...
