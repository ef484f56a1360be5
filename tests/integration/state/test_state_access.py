"""A state that this user may not read."""

import os
from pathlib import Path

import pytest

from tests.support.processes.other_user import acting_as_nobody
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import StateError
from tidemark.model.lsn import SystemIdentifier
from tidemark.wire.state.values import Identity


@pytest.mark.skipif(os.geteuid() != 0, reason="acting as another user requires root")
def test_a_state_of_another_user_is_refused_with_the_user_to_choose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    with StateStore.create(StateFolder(state), Identity("main", SystemIdentifier(77), "0a0b", 15, 16 << 20, 4 << 20)):
        pass
    state.chmod(0o755)
    (state / "lmdb").chmod(0o755)
    monkeypatch.chdir(state)  # other users cannot access the folders above
    with acting_as_nobody(), pytest.raises(StateError, match="Permission denied") as refused:
        StateStore.open(StateFolder(Path()), read_only=True)
    assert "as the user of the capture" in refused.value.hint
