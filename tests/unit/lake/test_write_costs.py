"""From how many bytes on executors write a run: what the measured times of both ways say."""

import pytest

from tidemark.model.lsn import Oid
from tidemark.pipeline.sinks.executors.write_costs import (
    BYTES_MAX,
    BYTES_MIN,
    BYTES_START,
    CHANGES_BYTES_MIN,
    MEASURED_BYTES_MIN,
    MERGES,
    MIB,
    TIMES_MAX,
    CostLine,
    MergeCosts,
    ReadCosts,
    RunWriter,
    WriteCosts,
)

SIZES = [size * MIB for size in (1, 2, 3, 5, 7)]
LARGE = [size * MIB for size in (9, 16, 40, 64)]
RUNS = 12  # of each size


def measured(driver: tuple[float, float], executors: tuple[float, float]) -> WriteCosts:
    """Return costs after runs of a fixed time, and a time for each MiB; first of the driver, then of executors."""
    costs = WriteCosts()
    for _ in range(RUNS):
        for writer, (fixed_s, mib_s), sizes in (
            (RunWriter.DRIVER, driver, SIZES),
            (RunWriter.EXECUTORS, executors, LARGE),
        ):
            for size in sizes:
                costs.record(writer, size, fixed_s + mib_s * size / MIB)
    return costs


def test_without_a_measurement_the_threshold_is_its_start() -> None:
    assert WriteCosts().threshold_bytes == pytest.approx(BYTES_START, abs=1)


@pytest.mark.parametrize(
    ("driver", "executors", "expected"),
    [
        ((0.05, 0.100), (0.55, 0.050), 10 * MIB),
        ((0.05, 0.100), (0.25, 0.060), 5 * MIB),
        ((0.05, 0.050), (1.05, 0.010), 25 * MIB),
        ((0.05, 0.200), (0.10, 0.020), BYTES_MIN),
        ((0.05, 0.010), (0.50, 0.010), BYTES_MAX),
        ((0.05, 0.010), (0.50, 0.050), BYTES_MAX),
        ((1.00, 0.010), (0.10, 0.001), BYTES_MIN),
    ],
    ids=["pays later", "pays sooner", "expensive jobs", "cheap jobs", "same rate", "slow executors", "slow commits"],
)
def test_the_threshold_is_where_both_ways_take_as_long(
    driver: tuple[float, float], executors: tuple[float, float], expected: int
) -> None:
    assert measured(driver, executors).threshold_bytes == pytest.approx(expected, rel=0.15)


def test_the_threshold_follows_a_cluster_that_becomes_faster_or_slower() -> None:
    costs = measured((0.05, 0.1), (0.05, 0.01))
    assert costs.threshold_bytes == BYTES_MIN
    for fixed_s, mib_s, expected in ((2.0, 0.2, BYTES_MAX), (0.05, 0.01, BYTES_MIN)):
        for _ in range(RUNS):
            for size in LARGE:
                costs.record(RunWriter.EXECUTORS, size, fixed_s + mib_s * size / MIB)
        assert costs.threshold_bytes == expected


def test_one_exceptional_run_counts_as_a_few_times_the_expected_one() -> None:
    usual, slow, slower = (measured((0.05, 0.1), (0.55, 0.05)) for _ in range(3))
    expected_s = 0.55 + 0.05 * 16
    slow.record(RunWriter.EXECUTORS, 16 * MIB, 1.01 * TIMES_MAX * expected_s)
    slower.record(RunWriter.EXECUTORS, 16 * MIB, 1000.0)
    assert usual.threshold_bytes < slow.threshold_bytes == pytest.approx(slower.threshold_bytes, rel=0.01)


def test_small_runs_do_not_displace_those_that_show_the_time_of_a_byte() -> None:
    costs = measured((0.05, 0.1), (0.55, 0.05))
    before = costs.threshold_bytes
    for _ in range(1000):
        costs.record(RunWriter.DRIVER, MEASURED_BYTES_MIN - 1, 0.5)
    assert costs.threshold_bytes == before


def test_a_time_that_falls_with_the_bytes_is_taken_as_a_fixed_one() -> None:
    line = CostLine(1.0, 1.0)
    for _ in range(RUNS):
        line.record(1 * MIB, 2.0)
        line.record(9 * MIB, 1.0)
    assert line.seconds(0) == line.seconds(64 * MIB) > 0


ORDERS, ITEMS = (Oid(1), Oid(10)), (Oid(1), Oid(11))


def test_a_merge_pays_by_the_files_that_it_rewrites_too() -> None:
    costs, threshold = MergeCosts(), MERGES.start
    changes = 4 * MIB
    assert not costs.pays(ORDERS, changes, 0)
    assert not costs.pays(ORDERS, changes, threshold - changes - 1)
    assert costs.pays(ORDERS, changes, threshold - changes + 1)


def test_a_merge_is_expected_to_rewrite_as_much_for_a_byte_as_the_last_one_of_the_table() -> None:
    costs = MergeCosts()
    assert costs.changes_min(ORDERS) is None
    costs.record(RunWriter.DRIVER, ORDERS, 100, 1500, 0.001)  # too small to say something about the time of a byte
    assert costs.pays(ORDERS, MERGES.start // 16 + 1, None)
    assert not costs.pays(ORDERS, MERGES.start // 16 - 1, None)
    assert not costs.pays(ITEMS, MERGES.start - 1, None), "another table says nothing"
    assert costs.changes_min(ORDERS) == pytest.approx(MERGES.start / 16, abs=1)
    costs.record(RunWriter.DRIVER, ORDERS, 1, 1_000_000, 0.001)
    assert costs.changes_min(ORDERS) == CHANGES_BYTES_MIN


def test_the_threshold_of_merges_stays_within_its_own_bounds() -> None:
    for writer, expected in ((RunWriter.DRIVER, MERGES.least), (RunWriter.EXECUTORS, MERGES.most)):
        costs = MergeCosts()
        for number in range(40):
            costs.record(writer, ORDERS, MERGES.start, MERGES.start * (1 + number % 3), 60.0)
        assert costs.changes_min(ORDERS) == pytest.approx(expected / (1 + (1 + 39 % 3)), abs=1)


def test_the_time_of_a_read_follows_the_last_large_ones() -> None:
    costs = ReadCosts()
    before = costs.seconds(64 * MIB)
    for _ in range(RUNS):
        costs.record(MEASURED_BYTES_MIN - 1, 100.0)
    assert costs.seconds(64 * MIB) == before
    for _ in range(RUNS):
        for size in LARGE:
            costs.record(size, 0.5 + 0.1 * size / MIB)
    assert costs.seconds(20 * MIB) == pytest.approx(2.5, rel=0.05)
