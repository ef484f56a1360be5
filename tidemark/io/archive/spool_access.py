"""Checks whether the server's user can fill our spool, and whether we can read the files of that user (I25).

This fails if the capture runs as another user and no group shares the folder: archive_command would fail for ever.
"""

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tidemark.io.archive.spool import Spool
from tidemark.io.host.disk import StateFull
from tidemark.io.host.file_access import EXECUTE, READ, WRITE, ServerUser, access_error
from tidemark.io.process.config import ArchiveConfig
from tidemark.io.state.state import StateStore
from tidemark.model.errors import ConfigError
from tidemark.wire.state.values import Archiving


class ServerCannotArchive(ConfigError):
    """The server's user cannot fill the spool: WAL would be lost, or stay on the server without bound."""

    hint = (
        "put the users of the server and of the capture into one group, restart the server so that it has the "
        "group, set capture.group to the group in a configuration file and run cdcctl init --config FILE; or set "
        'archive.filled_by = "pg_receivewal"'
    )


def spool_access_error(archive: ArchiveConfig, user: ServerUser | None) -> str | None:
    """Return why the server's user cannot fill the spool, or we cannot read its files; None if nothing prevents it."""
    spool = Spool(Path(archive.folder))
    if not is_filled_by(archive, user) or not spool.is_ours:
        return None
    assert user is not None, "else nothing is known"
    found = (
        access_error(user, spool.folder, READ | WRITE | EXECUTE)
        or access_error(user, spool.sentinel, READ)
        or access_error(user, spool.ledger, READ | WRITE)
    )
    if found is not None or os.geteuid() in (0, user.uid):
        return found
    if not spool.is_shared:
        return f"{spool.folder} is not shared with a group: no other user can read the files of {user.name}"
    gid = spool.folder.stat().st_gid
    if gid != os.getegid() and gid not in os.getgroups():
        return f"the user of the capture is not in the group {gid} of {spool.folder}"
    return None


def is_filled_by(archive: ArchiveConfig, user: ServerUser | None) -> bool:
    """Return whether a known user of the server fills the spool."""
    return user is not None and bool(archive.folder) and archive.filled_by == "archive_command"


def known_user(seen: Archiving) -> ServerUser | None:
    """Return the server's user, as a daemon or `cdcctl init` recorded it."""
    return None if seen.uid is None else ServerUser(seen.uid, seen.gid, seen.groups)


def record_user(store: StateStore, user: ServerUser) -> None:
    """Record the user that the server runs as: `cdcctl status`, which reads only the folders, uses it."""
    with suppress(StateFull):
        store.record_archiving(replace(store.archiving(), uid=user.uid, gid=user.gid, groups=user.groups))
