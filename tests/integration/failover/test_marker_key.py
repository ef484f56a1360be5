"""The key of the markers: created once, never shown, refused if it is missing, short or readable by other users."""

import stat
from pathlib import Path

import pytest

from tidemark.io.process.config import Config, MarkersConfig
from tidemark.io.process.marker_key import BadMarkerKey, load_marker_key, make_marker_key
from tidemark.io.state.state_folder import StateFolder
from tidemark.wire.marker import KEY_BYTES_MIN

SECRET = "a secret of the operator's own"


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path / "state")


def named(path: Path) -> Config:
    return Config(markers=MarkersConfig(key_file=str(path)))


@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_a_key_is_created_once_with_the_mode_of_the_state(tmp_path: Path, mode: int) -> None:
    folder = StateFolder(tmp_path / "state", shared_with_group=mode == 0o660)
    make_marker_key(Config(), folder)
    key = load_marker_key(Config(), folder)
    assert len(bytes.fromhex(key.decode())) == 32
    assert stat.S_IMODE((folder.root / "marker.key").stat().st_mode) == mode
    make_marker_key(Config(), folder)
    assert load_marker_key(Config(), folder) == key
    assert [path.name for path in folder.root.iterdir()] == ["marker.key"]


def test_a_key_of_the_operator_is_used_unchanged_and_none_is_created(folder: StateFolder, tmp_path: Path) -> None:
    path = tmp_path / "theirs"
    path.touch(mode=0o600)
    path.write_text(f"{SECRET}\n")
    make_marker_key(named(path), folder)
    assert load_marker_key(named(path), folder) == SECRET.encode()
    assert not folder.root.exists()


def test_a_missing_a_short_and_a_world_readable_key_are_refused_by_name(folder: StateFolder, tmp_path: Path) -> None:
    path = tmp_path / "theirs"
    for content, mode, reported in (
        (None, 0, "No such file"),
        (SECRET[: KEY_BYTES_MIN - 1], 0o600, f"{KEY_BYTES_MIN - 1} bytes"),
        (" " * 100, 0o600, "0 bytes"),
        ("x" * 5000, 0o600, "bytes"),
        (SECRET, 0o644, "accessible to all users"),
        (SECRET, 0o602, "accessible to all users"),
    ):
        if content is not None:
            path.write_text(content)
            path.chmod(mode)
        for act in (load_marker_key, make_marker_key):
            with pytest.raises(BadMarkerKey, match=reported) as caught:
                act(named(path), folder)
            assert str(path) in str(caught.value)
            assert SECRET not in str(caught.value) + caught.value.hint
            assert caught.value.hint
