"""Which logs and replicas lag: long writes, longer than those of all others, in batches in succession."""

import pytest

from tests.support.processes.python_calls import counted_calls
from tidemark.pipeline.sinks.targets.slow_writes import SLOW_BATCHES, TIMES_OTHERS, SlowWrites

LIMIT_S = 10.0
SLOW, LOG, OTHER = "lake/a/replica", "lake/a/log", "lake/b/log"


def lagging(writes: SlowWrites, seconds: dict[str, float], batches: int = SLOW_BATCHES) -> list[str]:
    found = {}
    for _ in range(batches):
        for uri, taken_s in seconds.items():
            writes.record(uri, taken_s)
        found = writes.end_batch()
    return sorted(found)


@pytest.mark.feature("L08")
@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        ({SLOW: 11.0, LOG: 0.1, OTHER: 0.1}, [SLOW]),
        ({SLOW: 11.0, LOG: 11.0, OTHER: 0.1}, [LOG, SLOW]),
        ({SLOW: 10.0, OTHER: 0.1}, []),
        ({SLOW: 11.0, LOG: 0.1}, []),
        ({SLOW: 20.0, OTHER: 20.0 / TIMES_OTHERS}, []),
        ({SLOW: 20.1, OTHER: 20.0 / TIMES_OTHERS}, [SLOW]),
        ({SLOW: 50.0, OTHER: 50.0}, []),
    ],
    ids=["replica", "both", "at the limit", "no other table", "at the share", "beyond the share", "all are slow"],
)
def test_a_table_lags_if_only_its_writes_are_long(seconds: dict[str, float], wanted: list[str]) -> None:
    writes = SlowWrites(LIMIT_S)
    assert lagging(writes, seconds, SLOW_BATCHES - 1) == []
    assert lagging(writes, seconds, 1) == wanted


def test_one_short_write_begins_the_count_again() -> None:
    writes = SlowWrites(LIMIT_S)
    long, short = {SLOW: 11.0, OTHER: 0.1}, {SLOW: 1.0, OTHER: 0.1}
    for seconds in (long, long, short, long, long):
        assert lagging(writes, seconds, 1) == []
    assert lagging(writes, {SLOW: 11.0}, 1) == [], "it delays nobody, which does not begin the count again"
    assert lagging(writes, long, 1) == [SLOW]
    assert lagging(writes, long, 1) == [], "it is counted anew"


def test_no_table_lags_without_a_limit() -> None:
    assert lagging(SlowWrites(0), {SLOW: 1e6, OTHER: 0.1}) == []


def test_the_end_of_a_batch_costs_the_same_for_each_of_more_tables() -> None:
    def calls(tables: int) -> int:
        writes = SlowWrites(LIMIT_S)
        for number in range(tables):
            writes.record(f"lake/{number}/log", 11.0)
            writes.record(f"lake/{number}/replica", 0.1)
        with counted_calls() as counted:
            assert writes.end_batch() == {}
        return counted.total

    few, some, many = calls(10), calls(20), calls(200)
    assert many - some <= 18 * (some - few)
