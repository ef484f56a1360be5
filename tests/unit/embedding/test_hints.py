"""The hint of an error is in the traceback that an application prints."""

import traceback
from pathlib import Path

import pytest

from tidemark import ConfigError, Engine
from tidemark.embedding.hints import noted_hints
from tidemark.model.errors import TidemarkError


def test_the_traceback_of_a_refused_setting_has_the_hint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        Engine("host=db", state=tmp_path / "state", handler=print, settings={"ring": {"bytes": 3}})
    assert raised.value.hint
    assert f"hint: {raised.value.hint}" in "".join(traceback.format_exception(raised.value))


def test_a_hint_is_noted_once_and_behind_earlier_notes() -> None:
    error = TidemarkError("it failed", hint="try again")
    error.add_note("after 3 attempts")
    for _ in range(2):
        with pytest.raises(TidemarkError), noted_hints():
            raise error
    assert error.__notes__ == ["after 3 attempts", "hint: try again"]


def test_an_error_without_a_hint_gets_no_note() -> None:
    error = TidemarkError("it failed")
    with pytest.raises(TidemarkError), noted_hints():
        raise error
    assert not hasattr(error, "__notes__")
