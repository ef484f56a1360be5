"""The bound of what the outbox keeps for paused tables."""

from pathlib import Path

import pytest

from tests.support.workloads.feeder import make_state
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state_folder import StateFolder
from tidemark.pipeline.driver.arguments import parse_arguments
from tidemark.pipeline.landing.settings import PausedBytesTooLarge, Settings, paused_bytes


def bound(state: Path, given: int | None) -> int:
    settings = Settings(state, "", "", "spark", 1, once=True, source={}, paused_bytes=given)
    with OutboxReader.open(StateFolder(state)) as outbox:
        return paused_bytes(settings, outbox)


@pytest.mark.feature("N16")
def test_paused_tables_keep_a_quarter_of_the_outbox_at_most(tmp_path: Path) -> None:
    state = tmp_path / "state"
    make_state(state, bytes_max=4 << 20)
    assert bound(state, None) == 1 << 20
    assert bound(state, 1) == 1
    assert bound(state, 1 << 20) == 1 << 20
    with pytest.raises(PausedBytesTooLarge, match="--paused-bytes is 1048577: at most 1048576"):
        bound(state, (1 << 20) + 1)


def test_the_option_is_read() -> None:
    assert parse_arguments(["--state", "s", "--lake", "l"]).paused_bytes is None
    assert parse_arguments(["--state", "s", "--lake", "l", "--paused-bytes", "77"]).paused_bytes == 77
