"""The stored value of a schema version: the OID of its database, then the relation, in an envelope.

A version is stored under its number, which is never used for another one. It is deleted after the last value that names
it.
"""

from collections.abc import Callable

from tidemark.model.lsn import OID_BYTES, Oid
from tidemark.model.relation import Relation
from tidemark.wire.envelope import seal, unseal
from tidemark.wire.relations import SchemaVersion, decode_relation, encode_relation

SCHEMA_FORMAT_VERSION = 1
_READ_KEPT = 4096  # versions that a reader keeps


def encode_schema(database: Oid, relation: Relation) -> bytes:
    """Return the stored value."""
    return seal(database.to_bytes(OID_BYTES) + encode_relation(relation), SCHEMA_FORMAT_VERSION)


def decode_schema(version: SchemaVersion, stored: bytes) -> tuple[Oid, Relation]:
    """Return database and relation of a stored value; raise `DamagedValue`."""
    payload = unseal(f"schema version {version}", stored, SCHEMA_FORMAT_VERSION)
    return Oid(int.from_bytes(payload[:OID_BYTES])), decode_relation(payload[OID_BYTES:])


class ReadVersions:
    """The schema versions that a reader has read, by their numbers; for any thread."""

    def __init__(self) -> None:
        self._relations: dict[SchemaVersion, Relation] = {}

    def relation(self, version: SchemaVersion, stored: Callable[[], bytes]) -> Relation:
        """Return the relation of a version; `stored` reads its value if it is not known."""
        relation = self._relations.get(version)
        if relation is None:
            if len(self._relations) >= _READ_KEPT:
                self._relations = {}
            relation = self._relations[version] = decode_schema(version, stored())[1]
        return relation
