"""What is described of types and relations, each with the subjects from which its description was made."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tidemark.decode.catalog.transactions import Subject
from tidemark.model.lsn import Oid
from tidemark.model.relation import Relation, TypeDescription


@dataclass(frozen=True, slots=True)
class DescribedType:
    """A type and the subjects of its description."""

    type: TypeDescription
    subjects: frozenset[Subject]


@dataclass(frozen=True, slots=True)
class DescribedRelation:
    """A relation and the subjects of its description, besides its own row."""

    relation: Relation
    subjects: frozenset[Subject]


@dataclass(frozen=True, slots=True)
class DescribedName:
    """A relation's name and the subjects of the name, besides its own row."""

    text: str
    subjects: frozenset[Subject]


Above = Callable[[Oid], DescribedRelation | None]
"""Gives the description of a partition's parent."""


class DescribedTypes(Protocol):
    """A cache of described types."""

    def get(self, oid: Oid) -> DescribedType | None:
        """Return the cached description, if there is one."""

    def keep(self, oid: Oid, described: DescribedType) -> None:
        """Cache a description."""
