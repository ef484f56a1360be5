"""The folder of a process's own files: its lock, and what it may lose. A state folder is one; others have no state."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessFolder:
    """A folder; its files have mode 0600, or 0660 if a group shares them."""

    root: Path
    shared_with_group: bool = False

    @property
    def file_mode(self) -> int:
        """Permissions of files."""
        return 0o660 if self.shared_with_group else 0o600

    @property
    def folder_mode(self) -> int:
        """Permissions of folders."""
        return 0o770 if self.shared_with_group else 0o700

    def lock(self, role: str) -> Path:
        """Return the lock file of a role."""
        return self.root / f"{role}.lock"
