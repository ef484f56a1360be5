"""The stored value of a schema version: the OID of its database, then the relation, in an envelope."""

from tidemark.model.lsn import OID_BYTES, Oid
from tidemark.model.relation import Relation
from tidemark.wire.envelope import seal, unseal
from tidemark.wire.relations import SchemaVersion, decode_relation, encode_relation

SCHEMA_FORMAT_VERSION = 1


def encode_schema(database: Oid, relation: Relation) -> bytes:
    """Return the stored value."""
    return seal(database.to_bytes(OID_BYTES) + encode_relation(relation), SCHEMA_FORMAT_VERSION)


def decode_schema(version: SchemaVersion, stored: bytes) -> tuple[Oid, Relation]:
    """Return database and relation of a stored value; raise `DamagedValue`."""
    payload = unseal(f"schema version {version}", stored, SCHEMA_FORMAT_VERSION)
    return Oid(int.from_bytes(payload[:OID_BYTES])), decode_relation(payload[OID_BYTES:])
