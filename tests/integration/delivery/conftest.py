"""The fixtures of the tests of delivery: a state that has delivered up to START, and its epoch."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forged.deliveries import OWNER, START, delivered_store
from tidemark.engine.progress import Progress
from tidemark.io.state.state import StateStore
from tidemark.model.position import Epoch


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    with delivered_store(tmp_path) as made:
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
