"""The access of another user to a file, by permission bits alone.

Bits do not decide everything: a file with an access control list, and one that we cannot stat, count as accessible.
"""

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

READ, WRITE, EXECUTE = os.R_OK, os.W_OK, os.X_OK
_ACL = "system.posix_acl_access"
_VERBS = {READ: "read", WRITE: "write", EXECUTE: "execute"}


@dataclass(frozen=True, slots=True)
class ServerUser:
    """A user of this host, with the groups of its server process, which are those of its start."""

    uid: int
    gid: int
    groups: tuple[int, ...]

    @property
    def name(self) -> str:
        """The user's name, or its number if it has none."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return str(self.uid)

    def is_in(self, gid: int) -> bool:
        """Return whether the process is in a group."""
        return gid == self.gid or gid in self.groups


def access_error(user: ServerUser, path: Path, wanted: int) -> str | None:
    """Return what prevents a user from using `path` in this way; None: nothing that is visible."""
    for folder in _folders_of(path):
        if _lacks(user, folder, EXECUTE):
            return f"the user {user.name} cannot enter {folder} ({_mode_text(folder)})"
    lacking = _lacks(user, path, wanted)
    if not lacking:
        return None
    verbs = " and ".join(verb for bit, verb in _VERBS.items() if lacking & bit)
    if path.is_dir() and lacking & EXECUTE:
        verbs = verbs.replace("execute", "enter")
    return f"the user {user.name} cannot {verbs} {path} ({_mode_text(path)})"


def _folders_of(path: Path) -> list[Path]:
    """Return the parent folders of a path and of its resolved target, outermost first."""
    absolute, real = path.absolute(), path.resolve()
    folders = [*reversed(absolute.parents), *reversed(real.parents)]
    return list(dict.fromkeys(folders))


def _lacks(user: ServerUser, path: Path, wanted: int) -> int:
    """Return the bits of `wanted` that a user does not have."""
    if user.uid == 0:
        return 0
    try:
        found = path.stat()
        has_list = _ACL in os.listxattr(path)
    except OSError:
        return 0
    if has_list:
        return 0
    mode = stat.S_IMODE(found.st_mode)
    if user.uid == found.st_uid:
        mode >>= 6
    elif user.is_in(found.st_gid):
        mode >>= 3
    return wanted & ~mode


def _mode_text(path: Path) -> str:
    found = path.stat()
    return f"owner {found.st_uid}, group {found.st_gid}, mode {stat.S_IMODE(found.st_mode):04o}"
