"""Markers: logical messages that the capture writes into the WAL of its node (I07 to I10).

A marker is one line of JSON under the prefix `tidemark`, readable in pg_waldump, followed by an HMAC-SHA-256 over the
line. Every node of the capture has the key; it is needed because any role may call pg_logical_emit_message. A replayed
old marker is no attack: epoch and sequence show its age. A foreign message is `Ignored` with the reason, no error.

Version 2 added the incarnation of the writer; markers of version 1 are read, and have none.
"""

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from tidemark.model.errors import InvalidLsn
from tidemark.model.incarnation import Incarnation
from tidemark.model.lsn import SystemIdentifier, TimelineId, format_lsn, parse_lsn
from tidemark.model.position import Epoch, Pointer, Position, Sequence

VERSION = 2
VERSIONS_READ = (1, 2)
CONTENT_BYTES_MAX = 2048
REASON_CHARACTERS_MAX = 200
KEY_BYTES_MIN = 16
_MAC_DIGITS = 64
_NAME_DIGITS = 16
_NAMED = b"the name of this key"
_SEPARATOR = b" "


class MarkerKind(Enum):
    """The kind of a marker; the values are in WAL and never change."""

    CONFIRM = "RealtimeCdc"  # the consumer has confirmed the pointer
    STOP = "StopRealtimeCdc"  # the sidecar delivers nothing after the pointer
    TRY_START = "TryStartRealtimeCdc"  # the archiver delivers what commits before this marker, and nothing else
    CHECK = "CheckCdc"  # `cdcctl check` looks for it: its sequence is a random number
    START = "StartCdc"  # a process delivers under this epoch; one that delivers from a copy of its state stops here


class Ignored(Enum):
    """Why a message with our prefix is not a marker of ours."""

    MALFORMED = "it is not a marker"
    NEWER = "a newer version wrote it"
    FOREIGN = "it belongs to another capture or cluster"
    FORGED = "its HMAC was made with another key"  # by a forger, or by another capture of this name

    @property
    def hint(self) -> str:
        """What an operator does about such messages."""
        return _HINTS[self]


_HINTS = {
    Ignored.MALFORMED: "find the program that writes messages with the prefix tidemark",
    Ignored.NEWER: "upgrade Tidemark on this host",
    Ignored.FOREIGN: "nothing: another capture of the cluster works as well",
    Ignored.FORGED: "give each capture of the cluster its own capture.name, and all hosts of one capture the same key",
}


@dataclass(frozen=True, slots=True)
class Instance:
    """The identity of the markers of one capture: equal on all nodes of a cluster."""

    system_identifier: SystemIdentifier
    capture: str


@dataclass(frozen=True, slots=True)
class Marker:
    """One marker; `pointer` is None if nothing was delivered yet."""

    kind: MarkerKind
    instance: Instance
    epoch: Epoch
    sequence: Sequence
    pointer: Pointer | None
    reason: str = ""
    incarnation: Incarnation | None = None  # of the daemon that wrote it; None: written by `cdcctl`, or version 1


def write_marker(marker: Marker, key: bytes) -> bytes:
    """Return the content of the message; `key` has at least `KEY_BYTES_MIN` bytes."""
    assert len(key) >= KEY_BYTES_MIN, "configuration checks the key"
    fields = {
        "tidemark": VERSION,
        "kind": marker.kind.value,
        "cluster": str(marker.instance.system_identifier),
        "capture": marker.instance.capture,
        "epoch": str(marker.epoch),
        "sequence": str(marker.sequence),
        "delivered": str(marker.pointer.position) if marker.pointer else "",
        "restart": format_lsn(marker.pointer.restart_lsn) if marker.pointer else "",
        "reason": marker.reason[:REASON_CHARACTERS_MAX],
        "incarnation": marker.incarnation or "",
    }
    line = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
    return line + _SEPARATOR + _mac(line, key)


def read_marker(content: bytes, instance: Instance, key: bytes) -> Marker | Ignored:
    """Return the marker in a message with our prefix, or why it is not one of `instance`."""
    line, separator, mac = content[: -_MAC_DIGITS - 1], content[-_MAC_DIGITS - 1 : -_MAC_DIGITS], content[-_MAC_DIGITS:]
    if separator != _SEPARATOR or len(content) > CONTENT_BYTES_MAX:
        return Ignored.MALFORMED
    try:
        fields = json.loads(line)
        if fields["tidemark"] not in VERSIONS_READ:
            return Ignored.NEWER
        if Instance(SystemIdentifier(int(fields["cluster"])), fields["capture"]) != instance:
            return Ignored.FOREIGN
        if not hmac.compare_digest(mac, _mac(line, key)):
            return Ignored.FORGED
        return _marker(fields, instance)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, InvalidLsn):
        return Ignored.MALFORMED


def key_name(key: bytes) -> str:
    """Return a name that distinguishes keys; it reveals neither the key nor any marker's HMAC."""
    return hmac.new(key, _NAMED, "sha256").hexdigest()[:_NAME_DIGITS]


def _marker(fields: Mapping[str, str], instance: Instance) -> Marker:
    timeline, number = fields["epoch"].split(".")
    return Marker(
        kind=MarkerKind(fields["kind"]),
        instance=instance,
        epoch=Epoch(TimelineId(int(timeline)), int(number)),
        sequence=Sequence(int(fields["sequence"])),
        pointer=_pointer(fields["delivered"], fields["restart"]) if fields["delivered"] else None,
        reason=fields["reason"],
        incarnation=_incarnation(fields),
    )


def _incarnation(fields: Mapping[str, str]) -> Incarnation | None:
    name = fields.get("incarnation", "")
    if not isinstance(name, str):
        raise TypeError(type(name))
    return Incarnation(name) if name else None


def _pointer(delivered: str, restart: str) -> Pointer:
    timeline, commit_lsn, ordinal = delivered.split(":")
    position = Position(TimelineId(int(timeline)), parse_lsn(commit_lsn), int(ordinal))
    return Pointer(position, parse_lsn(restart))


def _mac(line: bytes, key: bytes) -> bytes:
    return hmac.new(key, line, "sha256").hexdigest().encode()
