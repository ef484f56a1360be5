"""Whether the server's user can fill our spool, and we can read what it writes (I25).

It cannot where the capture runs as another user and no group shares the folder: archive_command then fails for ever.
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
        "put the server's and the capture's user into one group, restart the server so that it has the group, name the "
        'group as capture.group and run cdcctl init again; or set archive.filled_by = "pg_receivewal"'
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
        return f"{spool.folder} is shared with no group: what the user {user.name} writes nobody else can read"
    gid = spool.folder.stat().st_gid
    if gid != os.getegid() and gid not in os.getgroups():
        return f"the capture's user is not in the group {gid}, which {spool.folder} is shared with"
    return None


def is_filled_by(config: Config, user: ServerUser | None) -> bool:
    """Tell if a user of the server, whom we know, fills the spool."""
    return user is not None and config.has_archive and config.archive.filled_by == "archive_command"


def known_user(seen: Archiving) -> ServerUser | None:
    """Return whom the server runs as, as a daemon or `cdcctl init` learnt it."""
    return None if seen.uid is None else ServerUser(seen.uid, seen.gid, seen.groups)
