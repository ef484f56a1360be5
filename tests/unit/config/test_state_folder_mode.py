"""A state folder that exists before `init`: made private, or refused."""

import os
from pathlib import Path

import pytest

from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ConfigError, StateError


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize(("group", "kept"), [(False, 0o700), (True, 0o770)])
def test_an_empty_folder_loses_the_permissions_of_others_and_it_is_reported(
    tmp_path: Path, *, group: bool, kept: int
) -> None:
    root = tmp_path / "state"
    root.mkdir()
    root.chmod(0o777)
    link = tmp_path / "link"
    link.symlink_to(root)
    folder = StateFolder(link, shared_with_group=group)
    assert folder.close_to_others() == [f"{link} had mode 0777; its mode is now {kept:04o}"]
    assert mode(root) == kept
    assert folder.close_to_others() == []


def test_the_folders_of_a_state_are_closed_too_and_keep_the_group_bit(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state", shared_with_group=True)
    folder.make()
    folder.root.chmod(0o2777)
    folder.history.chmod(0o775)
    assert len(folder.close_to_others()) == 2
    assert (mode(folder.root), mode(folder.history)) == (0o2770, 0o770)


def test_a_folder_with_other_files_and_a_shared_one_are_refused_unchanged(tmp_path: Path) -> None:
    for name, bits in (("home", 0o755), ("tmp", 0o1777)):
        root = tmp_path / name
        root.mkdir()
        if name == "home":
            (root / "file").touch()
        root.chmod(bits)
        with pytest.raises(ConfigError, match=f"is used for other files, and its mode {bits:04o} lets") as refusal:
            StateFolder(root).close_to_others()
        assert refusal.value.hint == "choose a folder for the state that does not exist yet"
        assert mode(root) == bits


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "state"
    root.mkdir()
    root.chmod(0o777)
    os.chown(root, 65534, -1)
    with pytest.raises(ConfigError, match="has mode 0777") as refusal:
        StateFolder(root).close_to_others()
    assert "let its owner run chmod 700" in refusal.value.hint


def test_a_folder_that_is_private_or_missing_is_left_unchanged(tmp_path: Path) -> None:
    root = tmp_path / "state"
    assert StateFolder(root).close_to_others() == []
    root.mkdir(mode=0o700)
    (root / "notes").touch()
    assert StateFolder(root).close_to_others() == []
    with pytest.raises(StateError, match="is not a folder"):
        StateFolder(root / "notes").close_to_others()
