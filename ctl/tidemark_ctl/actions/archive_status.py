"""`cdcctl archive status`: shows what the archive contains and what is missing."""

from pathlib import Path

from tidemark.io.archive.archive_state import ArchiveState
from tidemark.io.archive.spool import Spool
from tidemark.io.archive.spool_manifest import NoHistoryCopy, read_manifest
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.commit_time import USECS_PER_SECOND
from tidemark_ctl import settings
from tidemark_ctl.views.archive_tree import archive_of, archive_tree, loss_text, time_text
from tidemark_ctl.views.render import show


def status(state: Path, *, config: Path | None, as_json: bool) -> None:
    """Run the command."""
    with StateStore.open(StateFolder(state), read_only=True) as store:
        view = store.view()
    found = archive_of(settings.load(state, config), view)
    tree = {**archive_tree(found, view), "history_copied": _copied(found)}
    show({**tree, "losses": [loss_text(loss) for loss in view.losses.kept]}, as_json=as_json)


def _copied(found: ArchiveState) -> str | None:
    """Return the time of the copy of the catalog history; None if there is no copy."""
    try:
        return time_text(read_manifest(Spool(found.folder)).copied_at_us / USECS_PER_SECOND)
    except NoHistoryCopy:
        return None
