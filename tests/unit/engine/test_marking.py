"""The conditions for a marker of the confirmed pointer, and for a segment switch."""

from tidemark.engine.marking import OTHER_WAL_BYTES_MIN, Confirmed, ConfirmPacing, WalMark

SEGMENT = 16 << 20


def paced(*steps: tuple[float, Confirmed]) -> list[bool]:
    """Return the decisions at these points."""
    pacing = ConfirmPacing(every_s=10, bytes_min=SEGMENT)
    return [pacing.is_due(confirmed, now_s) for now_s, confirmed in steps]


def test_a_pointer_confirmed_before_the_first_check_needs_no_marker() -> None:
    assert paced((0, Confirmed(5, 100, 0)), (1000, Confirmed(5, 100, 0))) == [False, False]


def test_confirmed_transactions_are_marked_at_a_bounded_rate() -> None:
    looks = [(float(now_s), Confirmed(now_s, now_s, 0)) for now_s in range(31)]
    assert [now_s for now_s, due in enumerate(paced(*looks)) if due] == [10, 20, 30]


def test_a_custom_consumer_has_no_sequence_and_is_marked_by_its_commits() -> None:
    assert paced((0, Confirmed(0, 1, 0)), (10, Confirmed(0, 2, 0))) == [False, True]


def test_commits_are_marked_at_the_same_rate_after_the_nodes_clock_was_set_back() -> None:
    assert paced((0, Confirmed(0, 9, 0)), (10, Confirmed(0, 5, 0)), (20, Confirmed(0, 5, 0))) == [False, True, False]


def test_other_wal_is_marked_once_a_segment_and_no_marker_follows_a_marker() -> None:
    marker = 400  # bytes of a marker and its commit
    looks = [(0.0, Confirmed(1, 1, 0)), (10.0, Confirmed(1, 1, SEGMENT - 1)), (20.0, Confirmed(1, 1, SEGMENT))]
    afterwards = [(20.0 + 10 * n, Confirmed(1, 1, SEGMENT + marker * n)) for n in range(1, 100)]
    assert paced(*looks, *afterwards) == [False, False, True] + [False] * 99


def test_a_restarted_capture_counts_from_zero_and_still_marks_other_wal() -> None:
    before = [(0.0, Confirmed(1, 1, 0)), (10.0, Confirmed(2, 2, 100 * SEGMENT)), (20.0, Confirmed(2, 2, 0))]
    afterwards = [(30.0, Confirmed(2, 2, SEGMENT - 1)), (40.0, Confirmed(2, 2, SEGMENT)), (50.0, Confirmed(2, 2, 0))]
    assert paced(*before, *afterwards) == [False, True, False, False, True, False]


def test_an_idle_capture_writes_no_marker_however_much_it_has_decoded() -> None:
    looks = [(10.0 * n, Confirmed(1, 1, 100 * SEGMENT)) for n in range(5)]
    assert paced(*looks) == [False] * 5


def test_wal_advances_by_the_end_of_a_transaction_or_by_more_than_an_idle_node_writes() -> None:
    mark = WalMark(1000, "7:9:7")  # in pg_snapshot's format: 7 is open, 8 has ended
    assert not WalMark(1000 + OTHER_WAL_BYTES_MIN - 1, "7:9:7").has_moved_since(mark)
    assert WalMark(1000, "7:10:7").has_moved_since(mark)
    assert WalMark(1000, "9:9:").has_moved_since(mark)
    assert WalMark(1000 + OTHER_WAL_BYTES_MIN, "7:9:7").has_moved_since(mark)
