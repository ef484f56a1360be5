"""The file of confirmations as a killed sidecar leaves it."""

from contextlib import closing

from tidemark.io.state.confirmed_file import ConfirmedFile
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.position import Position


def confirm_in_the_file(folder: StateFolder, position: Position) -> None:
    """Leave the file as a sidecar does that was killed after this confirmation, and before its transaction."""
    with StateStore.open(folder, read_only=True) as store:
        view = store.view()
    assert view.term is not None
    assert view.start is not None
    with closing(ConfirmedFile.create(folder, view.identity.outbox_id, view.term.epoch)) as file:
        file.write(view.start.position, position)
