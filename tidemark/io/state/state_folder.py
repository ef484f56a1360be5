"""The state folder's layout, defined only here.

STATE/lmdb/{data,lock}.mdb    positions, modes, epochs, readers, the outbox
STATE/heartbeat               heartbeats of the processes
STATE/confirmed               the last confirmation of a custom consumer, which LMDB may not have yet
STATE/history/                bases and journal of the catalog
STATE/spill/                  transactions larger than decode.memory_bytes
STATE/copy/                   WAL received while the first copy runs, and rows of the current table
STATE/place                   empty, never written again: its inode shows that the folder is no copy
STATE/ports.json              ports of the metrics, assigned by init
STATE/{sidecar,archiver}.lock, .sock   the role's lock and its control socket
STATE/server.lock, .sock      the lock of the outbox server, and the socket on which it serves
STATE/server.token            the token for its clients on TCP
"""

import grp
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from tidemark.io.host.disk import writing
from tidemark.io.state.process_folder import ProcessFolder
from tidemark.model.errors import ConfigError, StateError

SERVER = "server"  # the outbox server, beside the roles


@dataclass(frozen=True, slots=True)
class StateFolder(ProcessFolder):
    """A state folder; its files have mode 0600, or 0660 if a group shares them."""

    @property
    def lmdb(self) -> Path:
        """The LMDB environment."""
        return self.root / "lmdb"

    @property
    def heartbeat(self) -> Path:
        """The heartbeat file."""
        return self.root / "heartbeat"

    @property
    def confirmed(self) -> Path:
        """The last confirmation of a custom consumer."""
        return self.root / "confirmed"

    @property
    def history(self) -> Path:
        """Bases and journal files."""
        return self.root / "history"

    @property
    def spill(self) -> Path:
        """Spilled transactions; removed at every start."""
        return self.root / "spill"

    @property
    def copy(self) -> Path:
        """WAL that waits for the first copy."""
        return self.root / "copy"

    @property
    def copy_pages(self) -> Path:
        """Temporary files of a first copy from a base backup."""
        return self.root / "copy-pages"

    @property
    def place(self) -> Path:
        """The file that shows that the folder is not a copy."""
        return self.root / "place"

    @property
    def ports(self) -> Path:
        """The ports that `init` assigned."""
        return self.root / "ports.json"

    def progress(self, reader: str) -> Path:
        """Return the file of the progress of a reader's pipeline."""
        return self.root / f"pipeline-{reader}.json"

    def socket(self, role: str) -> Path:
        """Return the socket of a role, or of the outbox server."""
        return self.root / f"{role}.sock"

    def relax_umask(self) -> None:
        """Give the group, if there is one, access to the files that this process creates: relax the umask."""
        if self.shared_with_group:
            os.umask(0o777 & ~self.folder_mode)

    def share(self, group: str) -> None:
        """Create the folder, with `group` if that is not empty; files created in it then have the same group."""
        if not group:
            return
        try:
            number = grp.getgrnam(group).gr_gid
        except KeyError:
            raise ConfigError(
                f"capture.group: there is no group {group!r}", hint="create the group, or set another one"
            ) from None
        self.relax_umask()
        with writing(self.root):
            self.root.mkdir(mode=self.folder_mode, parents=True, exist_ok=True)
            os.chown(self.root, -1, number)
            self.root.chmod(self.folder_mode | stat.S_ISGID)

    def close_to_others(self) -> list[str]:
        """Remove unneeded permissions from existing folders; return what was changed.

        Raise `ConfigError` for a root that other users may change: another user's, a shared one (sticky, as /tmp), or
        one with other files in it.
        """
        changed = []
        for folder in (self.root, self.lmdb, self.history, self.spill, self.copy):
            if not folder.exists():
                continue
            found = folder.stat()
            mode = stat.S_IMODE(found.st_mode)
            if not stat.S_ISDIR(found.st_mode):
                raise StateError(
                    f"{folder} is not a folder", hint="choose a folder for the state that does not exist yet"
                )
            if not mode & 0o777 & ~self.folder_mode:
                continue
            is_foreign = folder == self.root and not self.lmdb.exists() and any(folder.iterdir())
            if is_foreign or mode & stat.S_ISVTX:
                raise ConfigError(
                    f"{folder} is used for other files, and its mode {mode:04o} lets other users read or change a "
                    "state in it",
                    hint="choose a folder for the state that does not exist yet",
                )
            if found.st_uid != os.geteuid():
                raise ConfigError(
                    f"the state folder {folder} has mode {mode:04o}: other users may read or change the state in it",
                    hint=f"choose a folder that does not exist yet, or let its owner run chmod {self.folder_mode:o}",
                )
            with writing(folder):
                folder.chmod(mode & (self.folder_mode | stat.S_ISGID))
            changed.append(f"{folder} had mode {mode:04o}; its mode is now {stat.S_IMODE(folder.stat().st_mode):04o}")
        return changed

    def make(self) -> None:
        """Create the missing folders."""
        for folder in (self.root, self.lmdb, self.history, self.spill, self.copy):
            with writing(folder):
                folder.mkdir(mode=self.folder_mode, parents=True, exist_ok=True)
