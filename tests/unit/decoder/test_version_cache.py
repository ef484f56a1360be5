"""Caches by relation version keep those in use, and drop those of tables that come and go."""

from itertools import count

import pytest

from tidemark.decode.transactions import version_cache
from tidemark.decode.transactions.version_cache import VersionCache


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_cache, "KEPT_MIN", 16)
    monkeypatch.setattr(version_cache, "KEPT_MAX", 64)


def misses(cache: VersionCache[int, str], versions: range) -> int:
    """Use versions in order; return how many of them the cache did not have."""
    missed = [version for version in versions if cache.get(version) is None and cache.keep(version, str(version))]
    return len(missed)


def test_versions_that_come_and_go_do_not_fill_the_cache() -> None:
    cache: VersionCache[int, str] = VersionCache()
    in_use = range(5)
    numbers = count(1_000)
    for _ in range(1_000):
        misses(cache, in_use)
        cache.keep(next(numbers), "of a table that is dropped")
        assert len(cache) <= 16
    assert cache.get(0) == "0"


@pytest.mark.parametrize("in_use", [16, 17, 40, 64])
def test_all_versions_in_use_stay_after_some_rounds(in_use: int) -> None:
    cache: VersionCache[int, str] = VersionCache()
    for _ in range(6):
        misses(cache, range(in_use))
    assert misses(cache, range(in_use)) == 0


def test_more_versions_in_use_than_the_bound_are_never_kept() -> None:
    cache: VersionCache[int, str] = VersionCache()
    for _ in range(20):
        misses(cache, range(65))
        assert len(cache) <= 64
