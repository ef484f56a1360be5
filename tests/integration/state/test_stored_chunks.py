"""The stored chunks of ranges of the outbox: those that single reads give, in bounded groups, each of one moment."""

from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.forged import groups
from tests.support.workloads.feeder import RandomTables, feed, make_state
from tests.support.workloads.stored_chunks import StoredChunk, read_singly
from tidemark.io.readers import outbox as outbox_module
from tidemark.io.readers.outbox import OutboxReader, OutboxTrimmed, StoredChunks
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.position import NO_SEQUENCE, Sequence
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.keys import slot
from tidemark.wire.values import CHUNK_BYTES

GROUPS = 20


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    make_state(tmp_path / "state", bytes_max=64 << 20)
    feed(tmp_path / "state", RandomTables(5).groups(GROUPS))
    feed(tmp_path / "state", [groups.insert(1 << 40, groups.text_relation("note"), "n" * (2 * CHUNK_BYTES))])
    return StateFolder(tmp_path / "state")


def chunks_of(copied: StoredChunks) -> list[StoredChunk]:
    content = copied.content.to_pybytes()
    bounds = pairwise(copied.ends)
    return [(sequence, content[a:b]) for sequence, (a, b) in zip(copied.sequences, bounds, strict=True)]


@pytest.mark.parametrize("bytes_max", [1, 10_000, CHUNK_BYTES, 64 << 20])
def test_the_chunks_of_ranges_are_those_of_single_reads_in_groups_of_bounded_size(
    state: StateFolder, bytes_max: int
) -> None:
    with OutboxReader.open(state) as outbox:
        head = outbox.head()
        ranges = [(NO_SEQUENCE, Sequence(7)), (Sequence(7), Sequence(7)), (Sequence(9), head)]
        found = [chunks_of(copied) for copied in outbox.stored_chunks(ranges, bytes_max)]
        expected = [*read_singly(outbox, 0, 7), *read_singly(outbox, 9, head)]
        assert list(outbox.stored_chunks([], bytes_max)) == []
    assert [chunk for group in found for chunk in group] == expected
    assert len(expected) > head - 2, "a value has several chunks"
    assert all(group for group in found)
    assert all(len(group) == 1 or sum(len(chunk) for _, chunk in group) <= bytes_max for group in found)
    for group, following in pairwise(found):
        assert sum(len(chunk) for _, chunk in group) + len(following[0][1]) > bytes_max, "as many as fit"


def test_a_group_has_a_bounded_number_of_chunks(state: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "COPIED_CHUNKS_MAX", 3)
    with OutboxReader.open(state) as outbox:
        head = outbox.head()
        found = [chunks_of(copied) for copied in outbox.stored_chunks([(NO_SEQUENCE, head)], 64 << 20)]
        assert [chunk for group in found for chunk in group] == read_singly(outbox, 0, head)
    assert {len(group) for group in found[:-1]} == {3}


def test_chunks_that_were_trimmed_meanwhile_are_an_error_and_those_copied_before_remain(state: StateFolder) -> None:
    with OutboxReader.open(state) as outbox, StateStore.open(state) as store:
        outbox.register("lake")
        head = outbox.head()
        expected = read_singly(outbox, 0, head)
        chunks = outbox.stored_chunks([(NO_SEQUENCE, head)], 1)
        first = next(chunks)
        outbox.confirm("lake", head, head)
        with store.transaction(None) as transaction:
            transaction.apply_confirmations()
        assert outbox.ledger().trimmed == head, "no transaction is open between two groups"
        for number in range(1, 4):  # into the pages that became free
            feed(state.root, [groups.insert((1 << 40) + 100 * number, groups.text_relation("note"), "m" * CHUNK_BYTES)])
        assert chunks_of(first) == expected[:1]
        with pytest.raises(OutboxTrimmed):
            next(chunks)


def test_a_chunk_that_is_not_there_is_named(state: StateFolder) -> None:
    with OutboxReader.open(state) as outbox:
        large = next(at for at, chunk in read_singly(outbox, 0, outbox.head()) if len(chunk) == CHUNK_BYTES)
        with outbox.environment.write() as transaction:
            transaction.delete(slot(outbox.scope, large, 1), db=outbox.environment.database("outbox"))
        with pytest.raises(DamagedValue, match=f"outbox value {large}.*its chunk 1 is not there"):
            list(outbox.stored_chunks([(NO_SEQUENCE, outbox.head())], 64 << 20))
