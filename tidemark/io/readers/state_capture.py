"""The capture of an opened state, as its pipelines and the outbox server use it; the requests are files of the folder.

`tidemark.io.flight.server_capture.ServerCapture` has the same methods for a server's clients.
"""

from collections.abc import Mapping

from tidemark.engine.selection import Selection
from tidemark.io.host.clock import host_name
from tidemark.io.readers.accepted_breaks import accepted_breaks
from tidemark.io.readers.captured_tables import captured_tables
from tidemark.io.readers.progress_file import record_progress, recorded_progress
from tidemark.io.readers.resume_requests import close_request, request_resume, requested_keys
from tidemark.io.state.opened_state import OpenedState
from tidemark.io.state.state_transaction import StateTransaction
from tidemark.model.lsn import Oid
from tidemark.model.relation import Relation
from tidemark.wire.capture_facts import CaptureFacts


class StateCapture:
    """The capture whose state is opened; `selection` determines its tables."""

    def __init__(self, opened: OpenedState, selection: Selection) -> None:
        self._opened = opened
        self._selection = selection

    def facts(self) -> CaptureFacts:
        """Return what a pipeline must know about the capture."""
        opened = self._opened
        with opened.environment.read() as transaction:
            inside = StateTransaction(opened.environment, transaction, opened.scope, opened.identity)
            followed, ledger, keys = inside.followed(), inside.ledger(), inside.marker_keys()
        return CaptureFacts(
            host_name(),
            str(opened.folder.root.absolute()),
            tuple(sorted(set(keys.names.values()))),
            awaits_promotion=followed is not None and ledger.head == ledger.trimmed,
        )

    def captured_tables(self) -> Mapping[tuple[Oid, Oid], Relation]:
        """Return the tables whose changes are delivered under their own name; raise `StateError`."""
        return captured_tables(self._opened.folder, self._selection)

    def accepted_breaks(self, reader: str) -> Mapping[str, str]:
        """Return the breaks that the operator accepted."""
        return accepted_breaks(self._opened.folder.root, reader)

    def resume_requests(self, reader: str) -> list[str]:
        """Return the keys of the tables whose resumption is requested."""
        return requested_keys(self._opened.folder.root, reader)

    def request_resume(self, reader: str, key: str) -> None:
        """Request that the table with this key is resumed."""
        request_resume(self._opened.folder.root, reader, key)

    def close_request(self, reader: str, key: str) -> None:
        """Remove a request, if there is one."""
        close_request(self._opened.folder.root, reader, key)

    def progress(self, reader: str) -> bytes:
        """Return the last recorded progress of a pipeline; empty if there is none."""
        return recorded_progress(self._opened.folder, reader)

    def record_progress(self, reader: str, content: bytes) -> None:
        """Record the progress of a pipeline, a JSON object."""
        record_progress(self._opened.folder, reader, content)
