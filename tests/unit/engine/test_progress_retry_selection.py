"""Watermarks, back-off and selection."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.forged import groups
from tests.support.forged.groups import relation
from tidemark.engine.progress import Progress
from tidemark.engine.retry import Backoff
from tidemark.engine.selection import Selection
from tidemark.model.errors import InternalError
from tidemark.model.lsn import Lsn
from tidemark.model.position import Pointer


def pointer(lsn: int) -> Pointer:
    return Pointer(groups.position(lsn), Lsn(lsn - 1))


def test_no_watermark_moves_back_and_none_overtakes_its_source() -> None:
    progress = Progress()
    progress.receive(Lsn(100))
    progress.decode(Lsn(90), Lsn(80))
    progress.deliver(pointer(70))
    progress.confirm(pointer(70))
    with pytest.raises(InternalError, match="received would move back"):
        progress.receive(Lsn(99))
    with pytest.raises(InternalError, match="out of order"):
        progress.decode(Lsn(101), Lsn(80))
    with pytest.raises(InternalError, match="out of order"):
        progress.decode(Lsn(95), Lsn(96))
    with pytest.raises(InternalError, match="decoded would move back"):
        progress.decode(Lsn(89), Lsn(80))
    with pytest.raises(InternalError, match="delivered would move back"):
        progress.deliver(pointer(69))
    with pytest.raises(InternalError, match="would pass delivered"):
        progress.confirm(pointer(71))
    progress.deliver(pointer(72))
    with pytest.raises(InternalError, match="confirmed would move back"):
        progress.confirm(pointer(69))
    with pytest.raises(InternalError, match="would pass delivered"):
        Progress().confirm(pointer(1))


def test_each_watermark_advances_or_stays_and_may_reach_its_source() -> None:
    progress = Progress()
    for lsn in (100, 100, 120):
        progress.receive(Lsn(lsn))
        progress.decode(Lsn(lsn), Lsn(lsn))
        progress.deliver(pointer(lsn))
        progress.confirm(pointer(lsn))
        progress.confirm(pointer(lsn))
    assert (progress.received_lsn, progress.decoded_lsn, progress.restart_lsn) == (120, 120, 120)
    assert progress.delivered == progress.confirmed == pointer(120)


def test_the_lag_is_the_wal_that_is_flushed_and_not_decoded() -> None:
    progress = Progress(received_lsn=Lsn(100), flush_lsn=Lsn(130))
    progress.decode(Lsn(90), Lsn(80))
    assert progress.lag_bytes == 40
    progress.flush_lsn = Lsn(50)  # the node reported it before it sent the decoded WAL
    assert progress.lag_bytes == 0


def test_a_pointer_has_a_restart_lsn_that_a_server_can_have() -> None:
    assert Pointer(groups.position(70), Lsn(0)).restart_lsn == 0  # of copied rows
    with pytest.raises(AssertionError):
        Pointer(groups.position(70), Lsn(-1))


def test_delays_double_up_to_the_longest_and_restart_after_a_success() -> None:
    backoff = Backoff(first_s=0.3, max_s=10.0)
    assert [round(backoff.failed(0.0), 1) for _ in range(8)] == [0.3, 0.6, 1.2, 2.4, 4.8, 9.6, 10.0, 10.0]
    assert backoff.wait_s(4.0) == 6.0
    backoff.succeeded()
    assert backoff.wait_s(0.0) == 0.0
    assert backoff.failed(0.0) == 0.3


@given(st.integers(0, 100_000))
def test_no_number_of_failures_overflows(failures: int) -> None:
    assert Backoff(failures=failures).failed(0.0) <= 10.0


@pytest.mark.parametrize(
    ("tables", "exclude", "captured", "left_out"),
    [
        (("*.*",), (), ["public.a", "app.b"], ["pg_catalog.pg_class", "pg_toast.t", "information_schema.t"]),
        (("account",), (), ["public.account"], ["app.account", "public.accounts"]),
        (("app.*",), ("app.*_log",), ["app.a"], ["app.a_log", "public.a"]),
        (("app.order_?",), (), ["app.order_1"], ["app.order_12", "App.order_1"]),
    ],
)
def test_a_table_is_captured_if_included_and_not_excluded(
    tables: tuple[str, ...], exclude: tuple[str, ...], captured: list[str], left_out: list[str]
) -> None:
    selection = Selection(tables=tables, exclude_tables=exclude)
    assert [name for name in captured + left_out if selection.selects_table(*name.split("."))] == captured


def test_the_topmost_partitioned_table_that_matches_names_the_changes_below_it() -> None:
    nearest, root = relation("middle", 20), replace(relation("orders", 10), namespace="app")
    assert Selection(partition_roots=("app.*", "middle")).root_of([nearest, root]) == root
    assert Selection(partition_roots=("middle",)).root_of([nearest, root]) == nearest
    assert Selection(partition_roots=("orders",)).root_of([nearest, root]) is None
    assert Selection().root_of([nearest, root]) is None


def test_messages_are_selected_by_prefix() -> None:
    selection = Selection(messages=("outbox.*", "audit"))
    prefixes = ("outbox.order", "audit", "audit2", "outbox")
    assert [prefix for prefix in prefixes if selection.selects_message(prefix)] == ["outbox.order", "audit"]
    assert Selection().selects_message("anything")


def test_a_database_is_captured_by_pattern() -> None:
    selection = Selection(databases=("app*",), exclude_databases=("app_x?",))
    names = ("app", "app_2", "app_x1", "app_x12", "postgres")
    assert [name for name in names if selection.selects_database(name)] == ["app", "app_2", "app_x12"]
