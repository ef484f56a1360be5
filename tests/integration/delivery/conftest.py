"""The fixtures of the tests of delivery: a state that has delivered up to START, and its epoch."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forged.deliveries import IDENTITY, OWNER, START
from tidemark.engine.progress import Progress
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.position import Epoch, Sequence
from tidemark.wire.state.state_keys import DELIVERED
from tidemark.wire.state.values import Watermark


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    with StateStore.create(StateFolder(tmp_path / "state"), IDENTITY) as made:
        with made.transaction(None) as transaction:
            transaction.put(DELIVERED, Watermark(START, Sequence(0)))
        yield made


@pytest.fixture
def epoch(store: StateStore) -> Epoch:
    return store.begin_epoch(OWNER)


@pytest.fixture
def stopping() -> threading.Event:
    return threading.Event()


@pytest.fixture
def progress() -> Progress:
    return Progress(delivered=START)
