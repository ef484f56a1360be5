"""Checks whether the server's user can fill our spool, and we can read what it writes (I25).

It cannot if the capture runs as another user and no group shares the folder: archive_command then fails for ever.
"""

import os
from pathlib import Path

from tidemark.io.archive.spool import Spool
from tidemark.io.host.file_access import EXECUTE, READ, WRITE, ServerUser, obstacle
from tidemark.io.process.config import Config
from tidemark.model.errors import ConfigError
from tidemark.wire.state import Archiving


class ServerCannotArchive(ConfigError):
    """The server's user cannot fill the spool: WAL would be lost, or held without bound."""

    hint = (
        "put the users of the server and of the capture into one group, restart the server so that it has the "
        "group, set capture.group to the group and run cdcctl init again; or set archive.filled_by = "
        '"pg_receivewal"'
    )


def spool_obstacle(config: Config, user: ServerUser | None) -> str | None:
    """Return what keeps the server's user from filling the spool, or us from reading what it writes; None: nothing."""
    spool = Spool(Path(config.archive.folder))
    if not is_filled_by(config, user) or not spool.is_ours:
        return None
    assert user is not None, "else nothing is known"
    found = (
        obstacle(user, spool.folder, READ | WRITE | EXECUTE)
        or obstacle(user, spool.sentinel, READ)
        or obstacle(user, spool.ledger, READ | WRITE)
    )
    if found is not None or os.geteuid() in (0, user.uid):
        return found
    if not spool.is_shared:
        return f"{spool.folder} is not shared with a group: no other user can read the files of {user.name}"
    gid = spool.folder.stat().st_gid
    if gid != os.getegid() and gid not in os.getgroups():
        return f"the user of the capture is not in the group {gid} of {spool.folder}"
    return None


def is_filled_by(config: Config, user: ServerUser | None) -> bool:
    """Tell if a user of the server, whom we know, fills the spool."""
    return user is not None and config.has_archive and config.archive.filled_by == "archive_command"


def known_user(seen: Archiving) -> ServerUser | None:
    """Return whom the server runs as, as a daemon or `cdcctl init` learnt it."""
    return None if seen.uid is None else ServerUser(seen.uid, seen.gid, seen.groups)
