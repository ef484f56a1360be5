"""The transforms by which each table was delivered last: a start compares its own with them."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TransformedTables:
    """The identity of the transforms of each table that some match, by `DATABASE/RELATION` (OIDs)."""

    identities: Mapping[str, str] = field(default_factory=dict)
    is_lost: bool = False  # the state was rebuilt: nothing is known of the deliveries of the lost one
