"""A secret that no log, message or `repr` shows."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """Bytes such as the key of a mask."""

    content: bytes

    def __repr__(self) -> str:
        return "Secret(...)"
