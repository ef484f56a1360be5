"""Commit policies and their combinations."""

import pytest

from tidemark.engine.pool.commit_policy import ALWAYS, Finished, every
from tidemark.model.errors import ConfigError

BY_TIME, BY_COUNT = every(seconds=5), every(changes=100)
TIMES = {False: 4.9, True: 5.0}
COUNTS = {False: 99, True: 100}


@pytest.mark.feature("A36")
@pytest.mark.parametrize("in_time", [False, True])
@pytest.mark.parametrize("in_count", [False, True])
def test_a_combination_is_due_as_its_parts_are(*, in_time: bool, in_count: bool) -> None:
    finished = Finished(TIMES[in_time], COUNTS[in_count])
    assert BY_TIME.is_due(finished) is in_time
    assert BY_COUNT.is_due(finished) is in_count
    assert (BY_TIME & BY_COUNT).is_due(finished) is (in_time and in_count)
    assert (BY_TIME | BY_COUNT).is_due(finished) is (in_time or in_count)
    assert every(seconds=5, changes=100).is_due(finished) is (in_time or in_count)
    assert ((BY_TIME & BY_COUNT) | ALWAYS).is_due(finished)
    assert ALWAYS.is_due(finished)


@pytest.mark.parametrize("given", [{}, {"seconds": 0}, {"changes": 0}, {"seconds": -1.0}, {"seconds": float("nan")}])
def test_a_policy_that_could_never_wait_or_is_empty_is_refused(given: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="every"):
        every(**given)
