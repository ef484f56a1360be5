"""The envelope of every value in the state: a version, a checksum, the payload.

A value that fails the check is reported by name and never read partially; the policy of its key decides what happens
then (`tidemark.wire.state.key`).
"""

import struct

import google_crc32c

from tidemark.model.errors import StateError

_HEAD = struct.Struct(">BI")  # version, CRC-32C over version and payload
_VERSION = struct.Struct(">B")


class DamagedValue(StateError):
    """A stored value with a wrong checksum or form."""

    hint = "a disk or another program damaged the state folder: see `cdcctl status`; restore it, or run `init` again"

    def __init__(self, key: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"damaged value in the state: {key}: {reason}", hint=hint)
        self.key = key


class NewerValue(StateError):
    """A stored value that a newer Tidemark wrote."""

    hint = "run the version of Tidemark that wrote this state, or a newer one"

    def __init__(self, key: str, version: int, known: int) -> None:
        super().__init__(f"{key} has format {version}, this program supports formats up to {known}")
        self.key = key


def seal(payload: bytes, version: int) -> bytes:
    """Return `payload` with its version and checksum in front."""
    crc = google_crc32c.extend(google_crc32c.value(_VERSION.pack(version)), payload)
    return _HEAD.pack(version, crc) + payload


def unseal(key: str, stored: bytes, known_version: int) -> bytes:
    """Return the payload of `stored`; `key` names it in errors."""
    if len(stored) < _HEAD.size:
        raise DamagedValue(key, f"{len(stored)} bytes are too few")
    version, crc = _HEAD.unpack_from(stored)
    payload = stored[_HEAD.size :]
    if google_crc32c.extend(google_crc32c.value(stored[:1]), payload) != crc:
        raise DamagedValue(key, "checksum mismatch")
    if not 0 < version <= known_version:
        raise NewerValue(key, version, known_version)
    return payload
