"""The catalog history of a state for a test that does not change catalogs."""

from tidemark.io.state.history_files import HistoryWriter
from tidemark.io.state.state import StateStore
from tidemark.wire.state.history_index import HistoryIndex, JournalMark


def empty_history(store: StateStore) -> HistoryWriter:
    """Return an empty history writer without a listener for its files."""
    identity = store.identity
    return HistoryWriter(
        store.folder.history,
        HistoryIndex(),
        JournalMark(),
        major=identity.server_major,
        system_identifier=identity.system_identifier,
        file_bytes_max=1 << 20,
        file_mode=store.folder.file_mode,
        store=lambda _index: None,
    )
