"""Which changes are skipped by their replication origin: changes that came by replication need not be sent back."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExcludedOrigins:
    """Some origins, by number, or all of them."""

    ids: frozenset[int] = frozenset()
    every: bool = False

    def __bool__(self) -> bool:
        return self.every or bool(self.ids)

    def holds(self, *origins: int) -> bool:
        """Return whether one of `origins` (0: none) is left out."""
        return any(origin and (self.every or origin in self.ids) for origin in origins)


NO_ORIGIN_EXCLUDED = ExcludedOrigins()
