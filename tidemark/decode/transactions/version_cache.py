"""Bounded caches of what is derived from relation versions.

The versions of dropped and changed tables are never used again, and nothing reports all of them: where tables are
swapped by a rename every minute, there are a million of them in a year. A full cache drops all its entries; those in
use come back. A database may have tens of thousands of tables in use, whose entries must all stay: so the bound grows
if most of the entries were dropped before.
"""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

KEPT_MIN = 16_384  # versions, about 2 kB each with what is derived from them
KEPT_MAX = 65_536  # also hashes of dropped ones, about 60 bytes each

VersionT = TypeVar("VersionT", bound=Hashable)
DerivedT = TypeVar("DerivedT")


class VersionBound:
    """How many versions a cache keeps."""

    __slots__ = ("_dropped", "_returned", "kept_max")

    def __init__(self) -> None:
        self.kept_max = KEPT_MIN
        self._dropped: set[int] = set()  # hashes
        self._returned = 0  # entries of now that were dropped before

    def add(self, version: Hashable) -> None:
        """Record that the cache has a further version."""
        self._returned += hash(version) in self._dropped

    def drop(self, versions: Iterable[Hashable]) -> None:
        """Record that the cache drops all its versions, which are these."""
        if self._returned > self.kept_max // 2:
            self.kept_max = min(2 * self.kept_max, KEPT_MAX)
        if len(self._dropped) >= KEPT_MAX:
            self._dropped.clear()
        self._dropped.update(map(hash, versions))
        self._returned = 0


class VersionCache(Generic[VersionT, DerivedT]):
    """What is derived from each of the versions in use; `get` returns None for any other version."""

    __slots__ = ("_bound", "_kept", "get")

    def __init__(self) -> None:
        self._kept: dict[VersionT, DerivedT] = {}
        self._bound = VersionBound()
        self.get = self._kept.get

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, version: VersionT, derived: DerivedT) -> DerivedT:
        """Add and return what is derived from a further version."""
        if len(self._kept) >= self._bound.kept_max:
            self._bound.drop(self._kept)
            self._kept.clear()
        self._bound.add(version)
        self._kept[version] = derived
        return derived
