"""The settings of a lake's table by its name: each name is matched once, and the memory for that is bounded."""

import pickle
from collections.abc import Sequence

import pytest

from tidemark.engine.selection import matches
from tidemark.io.process import lake_config
from tidemark.io.process.lake_config import ALL_TABLES, NAMES_MAX, LakeConfig, LakeTableConfig

FIRST, SECOND = LakeTableConfig("app.*", log_keep_days=1), LakeTableConfig("app.order*", log_keep_days=2)
CONFIG = LakeConfig((FIRST, SECOND, LakeTableConfig("note", log_keep_days=3)))


def test_the_first_pattern_that_matches_a_name_counts_however_often_it_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matched = list[str]()

    def counted(name: str, patterns: Sequence[str]) -> bool:
        matched.append(name)
        return matches(name, patterns)

    monkeypatch.setattr(lake_config, "matches", counted)
    config = LakeConfig(CONFIG.tables)
    for _ in range(3):
        assert config.settings_of("app.order_line") is FIRST
        assert config.settings_of("public.note").log_keep_days == 3
        assert config.settings_of("other.note") is ALL_TABLES
    assert matched == ["app.order_line", *["public.note"] * 3, *["other.note"] * 3]


def test_the_kept_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert NAMES_MAX > 1_000
    monkeypatch.setattr(lake_config, "NAMES_MAX", 3)
    config = LakeConfig(CONFIG.tables)
    for number in (0, 1, 2, 3, 4, 0):
        assert config.settings_of(f"app.t{number}") is FIRST
    assert config.settings_of("t5") is ALL_TABLES
    assert len(vars(config)["_settings"]) <= 3


def test_kept_names_are_no_part_of_the_value() -> None:
    """It passes to executors, and a changed configuration is compared with it."""
    asked, other = LakeConfig(CONFIG.tables), LakeConfig(CONFIG.tables)
    asked.settings_of("app.t")
    assert (asked, repr(asked), hash(asked)) == (other, repr(other), hash(other))
    assert pickle.dumps(asked) == pickle.dumps(other)
    assert pickle.loads(pickle.dumps(asked)) == other
