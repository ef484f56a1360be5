"""The configuration of a command."""

import tomllib
from pathlib import Path

import pytest
from tidemark_ctl import settings

from tidemark.model.errors import StateError


def test_a_state_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    state = tmp_path / ("x" * 300)
    with pytest.raises(StateError, match=f"the state folder {state} cannot be read: File name too long") as caught:
        settings.load(state, None)
    assert "permissions" in caught.value.hint


@pytest.mark.parametrize("name", ["shop", 'a "b" \\ c', "\U0001f600", "\x7f", "\x01\n", "Größe"])
def test_text_is_written_as_toml_that_reads_back(name: str) -> None:
    text = f"name = {settings.toml_text(name)}\nnames = {settings.toml_text((name, name))}\n"
    assert tomllib.loads(text) == {"name": name, "names": [name, name]}
    assert "\x7f" not in text, "TOML forbids it, although Python reads it"
