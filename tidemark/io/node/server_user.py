"""The user that the server runs as, if it runs on this host: archive_command is run by that user (I25).

No privilege is needed: a session has its backend's pid, and every user can read that process's user and groups in
/proc. A server on another host, in another process namespace or behind a pooler has no such process here: then the
user is unknown.
"""

import os
import socket
from pathlib import Path

import psycopg
from psycopg.rows import TupleRow

from tidemark.io.host.file_access import ServerUser

_NAMES = ("postgres", "postmaster")
_PEER_CREDENTIALS = 12  # struct ucred: pid, uid, gid
_OVERFLOW_ID = 65534  # the id that a user namespace shows for users without a mapping


def server_user(session: psycopg.Connection[TupleRow]) -> ServerUser | None:
    """Return the user of the server behind a session; None if it is unknown."""
    for pid in _pids(session):
        found = _user_of(pid)
        if found is not None:
            return found
    return None


def _pids(session: psycopg.Connection[TupleRow]) -> list[int]:
    """Return the processes of this host that may be the backend."""
    with socket.socket(fileno=os.dup(session.pgconn.socket)) as link:
        if link.family == socket.AF_UNIX:
            packed = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS)
            return [session.info.backend_pid, int.from_bytes(packed[:4], "little")]
        is_here = link.getpeername()[0] == link.getsockname()[0]
        return [session.info.backend_pid] if is_here else []


def _user_of(pid: int) -> ServerUser | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    if facts.get("Name", "").strip() not in _NAMES:
        return None
    uid, gid = (int(facts[name].split()[1]) for name in ("Uid", "Gid"))  # the effective ids
    if uid == _OVERFLOW_ID and not _maps_all_users():
        return None
    return ServerUser(uid, gid, tuple(sorted(int(group) for group in facts["Groups"].split())))


def _maps_all_users() -> bool:
    """Return whether this process sees all users: in a container, unmapped users are shown as nobody."""
    try:
        first, mapped, count = (int(word) for word in Path("/proc/self/uid_map").read_text().split())
    except (OSError, ValueError):
        return False
    return (first, mapped, count) == (0, 0, (1 << 32) - 1)
