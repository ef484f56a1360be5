"""Hints name the description of the configuration by a path that exists, in a clone and in an environment."""

from pathlib import Path

import pytest

from tidemark.io.process.config import BadConfig
from tidemark.io.process.config_loading import parse_config
from tidemark.io.process.config_reference import CONFIG_REFERENCE, reference_in

ROOT = Path(__file__).parents[3]


def test_the_first_place_that_has_the_description_is_named(tmp_path: Path) -> None:
    clone, environment = tmp_path / "clone", tmp_path / "environment" / "share" / "tidemark"
    assert reference_in([clone, environment]) == "conf/tidemark.toml"
    (environment / "conf").mkdir(parents=True)
    (environment / "conf" / "tidemark.toml").touch()
    assert reference_in([clone, environment]) == str(environment / "conf" / "tidemark.toml")


def test_hints_of_this_clone_name_its_file() -> None:
    assert Path(CONFIG_REFERENCE) == ROOT / "conf" / "tidemark.toml"
    with pytest.raises(BadConfig) as refused:
        parse_config("[no_such_section]\n", {}, where="t")
    assert f"{CONFIG_REFERENCE} describes every key" in refused.value.hint
