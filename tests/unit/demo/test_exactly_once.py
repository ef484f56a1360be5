"""The demonstration's final check of the change log fails whenever it should."""

from copy import deepcopy

import pytest

from scripts.demo_run.exactly_once import EntryKind, Log, LogEntry, judge
from scripts.demo_run.workload import JOURNAL
from tidemark.model.snapshot import parse_snapshot

ORDERS = "app.orders"
SNAPSHOTS = {ORDERS: parse_snapshot("10:12:10"), JOURNAL: parse_snapshot("10:12:10")}
ENTRIES = [
    LogEntry(0, 1, 9, {f"{ORDERS} i": 1}),  # the copy contains it
    LogEntry(0, 2, 10, {f"{ORDERS} i": 2, f"{ORDERS} u": 1}),  # still in progress when the copy began
    LogEntry(1, 1, 13, {f"{ORDERS} d": 1}),
]


@pytest.fixture
def log() -> Log:
    made = Log()
    for kind in (
        EntryKind(10, ORDERS, "i"),
        EntryKind(10, ORDERS, "i"),
        EntryKind(10, ORDERS, "u"),
        EntryKind(13, ORDERS, "d"),
    ):
        made.changes[kind] += 1
    for xid in (10, 13):
        made.changes[EntryKind(xid, JOURNAL, "i")] += 1
    made.numbers.update((entry.client, entry.number) for entry in ENTRIES)
    made.positions.update((1, number, 0, "") for number in range(made.changes.total()))
    return made


def test_a_log_with_each_change_once_is_right(log: Log) -> None:
    verdict = judge(ENTRIES, SNAPSHOTS, log)
    assert verdict.is_right
    assert (verdict.transactions, verdict.changes) == (3, 6)


def test_a_missing_or_additional_change_is_found_anywhere(log: Log) -> None:
    for kind in list(log.changes):
        fewer, more = deepcopy(log), deepcopy(log)
        fewer.changes[kind] -= 1
        more.changes[kind] += 1
        lost, doubled = judge(ENTRIES, SNAPSHOTS, fewer), judge(ENTRIES, SNAPSHOTS, more)
        assert (lost.lost, lost.doubled, lost.is_right) == (1, 0, False)
        assert (doubled.lost, doubled.doubled, doubled.is_right) == (0, 1, False)


def test_a_change_in_another_transaction_is_one_lost_and_one_doubled(log: Log) -> None:
    log.changes[EntryKind(13, ORDERS, "d")] -= 1
    log.changes[EntryKind(10, ORDERS, "d")] += 1
    verdict = judge(ENTRIES, SNAPSHOTS, log)
    assert (verdict.lost, verdict.doubled, verdict.is_right) == (1, 1, False)


def test_changes_visible_to_the_copy_must_not_be_streamed_as_well(log: Log) -> None:
    log.changes[EntryKind(9, ORDERS, "i")] += 1
    assert judge(ENTRIES, SNAPSHOTS, log).doubled == 1


def test_a_transaction_that_was_rolled_back_is_wrong_in_the_log(log: Log) -> None:
    log.numbers[1, 2] += 1
    assert not judge(ENTRIES, SNAPSHOTS, log).is_right


def test_two_changes_at_one_place_are_wrong_even_if_all_are_there(log: Log) -> None:
    log.positions[1, 0, 0, ""] += 1
    assert not judge(ENTRIES, SNAPSHOTS, log).is_right


def test_an_empty_log_is_never_right() -> None:
    assert not judge([], {}, Log()).is_right
