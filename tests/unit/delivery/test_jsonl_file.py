"""The file of the consumer `jsonl` after a write that was cut off: every line of it can be read."""

import json
import os
import threading
from pathlib import Path

import pytest

from tests.support.forged import groups
from tidemark.model.lsn import SystemIdentifier, TimelineId
from tidemark.model.position import Epoch, Partition
from tidemark.runtime.delivery import consumers
from tidemark.runtime.delivery.consumers import JsonlConsumer

GROUPS = [groups.insert(100 * number, groups.text_relation("note"), f"note {number}\u00e9") for number in (1, 2)]


def deliver(path: Path, *numbers: int) -> None:
    consumer = JsonlConsumer(str(path), {groups.DATABASE: "app"})
    consumer.on_assigned(Partition(SystemIdentifier(1)), Epoch(TimelineId(1), 1), None)
    consumer.on_events(GROUPS[number] for number in numbers)
    consumer.stop()


@pytest.fixture(params=[4, 1 << 16])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(consumers, "BLOCK_BYTES", request.param)
    return tmp_path / "changes.jsonl"


@pytest.mark.parametrize("kept", [0, 1])
def test_a_line_that_was_cut_off_anywhere_is_removed_and_written_again(path: Path, kept: int) -> None:
    deliver(path, *range(kept))
    before = path.read_bytes()
    deliver(path, kept)
    whole = path.read_bytes()
    for size in range(len(before), len(whole)):
        path.write_bytes(whole[:size])
        deliver(path, kept)
        assert path.read_bytes() == whole
    deliver(path)
    assert path.read_bytes() == whole


def test_a_last_line_of_another_program_is_kept_and_ended(path: Path) -> None:
    path.write_text('{"kind": "header"}')
    deliver(path, 0)
    first, second = path.read_text().splitlines()
    assert (json.loads(first), json.loads(second)["op"]) == ({"kind": "header"}, "i")


def test_a_pipe_is_written_as_it_is(tmp_path: Path) -> None:
    path, read = tmp_path / "pipe", list[bytes]()
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    deliver(path, 0)
    reader.join()
    assert json.loads(read[0])["after"]["note"] == "note 1\u00e9"
