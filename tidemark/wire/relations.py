"""Relation versions as bytes. This module needs no Arrow, which only code that reads rows imports."""

from functools import lru_cache
from typing import NewType

from tidemark.model.relation import Relation
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.json_form import JsonForm, JsonMismatch

SchemaVersion = NewType("SchemaVersion", int)
"""The number of a relation version in one state; 0 for a value without a relation."""

_RELATIONS_KEPT = 4096  # relation versions whose JSON is cached
_RELATION: JsonForm[tuple[Relation]] = JsonForm(tuple[Relation])


@lru_cache(maxsize=_RELATIONS_KEPT)
def encode_relation(relation: Relation) -> bytes:
    """Return the JSON of a relation version: equal versions give equal bytes."""
    return _RELATION.write((relation,))


@lru_cache(maxsize=_RELATIONS_KEPT)
def decode_relation(payload: bytes) -> Relation:
    """Return the relation version that `encode_relation` wrote."""
    try:
        return _RELATION.read(payload)[0]
    except JsonMismatch as error:
        raise DamagedValue("relation version", f"invalid JSON: {error}") from error
