"""The start of a daemon on a state: whether the folder was the last one in use, and the name in its markers (I21).

All of it is one transaction. With `moved` the operator confirms that this state is the one to deliver: it is needed if
the folder is a copy, or if another copy has overtaken it, and has no effect otherwise.
"""

import os
import secrets
from pathlib import Path

from tidemark.engine.folder_identity import is_same_folder
from tidemark.engine.incarnations import EPOCHS_SKIPPED, ended, with_one_more
from tidemark.io.host.disk import sync, writing
from tidemark.io.host.logs import Log
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.overtaken import check_not_overtaken
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.io.state.state_transaction import StateTransaction
from tidemark.model.errors import ConfigError
from tidemark.model.incarnation import INCARNATION_BYTES, FolderIdentity, Incarnation, KnownIncarnation
from tidemark.model.lsn import TimelineId
from tidemark.model.mode import Role
from tidemark.model.position import Epoch
from tidemark.wire.state.state_keys import FOLDER_IDENTITY, INCARNATIONS, OVERTAKEN, TERM
from tidemark.wire.state.values import Incarnations, Overtaken, Term

MACHINE_ID = Path("/etc/machine-id")
_NOT_YET = "uninitialized"  # machine-id(5): in the image of a machine that has not booted


class CopiedState(ConfigError):
    """A state folder that was last used elsewhere, and so seems to be a copy."""

    hint = (
        "two copies of a state deliver every change twice. If this folder should replace the original, stop the "
        "processes there, remove the original, and start this one once with --moved"
    )


def begin_incarnation(store: StateStore, role: Role, log: Log, *, moved: bool = False) -> Incarnation:
    """Record the start of a process of `role`, which holds the role's lock; return the name in its markers.

    Raises `CopiedState` or `OvertakenState`, with nothing written, if the state may not be used without `moved`.
    """
    here = read_folder_identity(store.folder)
    own = KnownIncarnation(Incarnation(secrets.token_hex(INCARNATION_BYTES)), role.value)
    with store.transaction(None) as transaction:
        # NB: inside the transaction: a process locks its role before it begins, so a started one counts as alive.
        alive = tuple(other.value for other in Role if RoleLock.status(store.folder, other.value).is_locked)
        recorded, overtaken = transaction.get(FOLDER_IDENTITY), transaction.get(OVERTAKEN)
        is_copy = recorded is not None and not is_same_folder(recorded, here)
        if not moved:
            if recorded is not None and is_copy:
                raise CopiedState(
                    f"{store.folder.root} is a copy: this state was last started in {recorded.path}"
                    f"{'' if recorded.machine == here.machine else ', on another machine'}"
                )
            check_not_overtaken(overtaken)
        elif is_copy or overtaken is not None:
            _confirm(transaction, overtaken)
        known = transaction.get(INCARNATIONS) or Incarnations()
        kept = with_one_more(known.kept, own, alive=alive, now=transaction.marks().extent)
        transaction.put(INCARNATIONS, Incarnations(kept, known.is_confirmed))
        transaction.put(FOLDER_IDENTITY, here)
    if moved:
        is_needed = is_copy or overtaken is not None
        event = "this state is confirmed as the one that delivers" if is_needed else "--moved was not needed"
        log.warning(event, incarnation=own.incarnation, state=str(store.folder.root))
    return own.incarnation


def expect_markers_ahead(transaction: StateTransaction) -> None:
    """Record that other writers' markers may be ahead of this state: it was rebuilt, or takes over from them."""
    known = transaction.get(INCARNATIONS) or Incarnations()
    transaction.put(INCARNATIONS, Incarnations(known.kept, is_confirmed=True))


def record_started(store: StateStore) -> None:
    """Record that this state has delivered all before its own start marker: later markers are not ahead of it."""
    if store.incarnations()[0].is_confirmed:
        with store.transaction(None) as transaction:
            known = transaction.get(INCARNATIONS) or Incarnations()
            transaction.put(INCARNATIONS, Incarnations(known.kept))


def record_overtaken(store: StateStore, found: Overtaken) -> Overtaken:
    """Fence this state: no process delivers from it any more. Return the marker that fenced it first."""
    with store.transaction(None) as transaction:
        earlier = transaction.get(OVERTAKEN)
        if earlier is not None:
            return earlier
        transaction.put(OVERTAKEN, found)
        term = transaction.term()
        if term is not None:  # the owner of the epoch fails in its next transaction
            transaction.put(TERM, Term(Epoch(term.epoch.timeline, term.epoch.number + 1), None))
    return found


def read_folder_identity(folder: StateFolder) -> FolderIdentity:
    """Return the place of a state folder; the file that identifies it is created if it is missing."""
    path = folder.place
    with writing(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, folder.file_mode)
        try:
            found = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        sync(folder.root)
    return FolderIdentity(_machine(), str(folder.root.resolve()), found.st_ino, found.st_ctime_ns)


def _machine() -> str:
    try:
        found = MACHINE_ID.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
    return "" if found == _NOT_YET else found


def _confirm(transaction: StateTransaction, overtaken: Overtaken | None) -> None:
    """Skip epochs that the other copy may use: its processes stop at our markers."""
    marks = transaction.marks()
    known = transaction.get(INCARNATIONS) or Incarnations()
    reached = [Epoch(TimelineId(1), 0)]
    reached += [marks.term.epoch] if marks.term is not None else []
    reached += [overtaken.rival_epoch] if overtaken is not None else []
    last = max(reached)
    number = max(epoch.number for epoch in reached) + EPOCHS_SKIPPED
    transaction.put(INCARNATIONS, Incarnations(ended(known.kept, marks.extent), is_confirmed=True))
    transaction.put(TERM, Term(Epoch(last.timeline, number), None))
    transaction.drop(OVERTAKEN)
