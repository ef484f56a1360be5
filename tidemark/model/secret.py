"""A secret that no log, message or `repr` shows."""

import hashlib
from dataclasses import dataclass

_PREFIX = b"tidemark plug-in secret:"  # so that the hash is that of no other use of the secret


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """Bytes such as the key of a mask."""

    content: bytes

    @property
    def digest(self) -> str:
        """A hash by which a changed secret is detected. A fast one suffices: a secret is a key, not a password."""
        return hashlib.sha256(_PREFIX + self.content).hexdigest()

    def __repr__(self) -> str:
        return "Secret(...)"
