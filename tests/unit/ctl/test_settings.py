"""The configuration of a command."""

from pathlib import Path

import pytest
from tidemark_ctl import settings

from tidemark.model.errors import StateError


def test_a_state_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    state = tmp_path / ("x" * 300)
    with pytest.raises(StateError, match=f"the state folder {state} cannot be read: File name too long") as caught:
        settings.load(state, None)
    assert "permissions" in caught.value.hint
