"""The store that the pool's consumers confirm to."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.plugins.test_parked_table import new_store
from tidemark.io.state.state import StateStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    with new_store(tmp_path) as made:
        yield made
