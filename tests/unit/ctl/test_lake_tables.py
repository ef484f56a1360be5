"""The tables of a lake as text."""

from tidemark_ctl.views.lake_tables import list_tree, without_dropped
from tidemark_ctl.views.render import Tree

from tidemark.pipeline.lake.positions.table_position import TableState

TABLE: dict[str, Tree] = {"name": "shop.public.t", "position": "1:0/1:0", "log": 2, "folder": "f"}


def test_a_table_without_a_replica_is_listed_with_the_reason() -> None:
    lines = [
        list_tree({"tables": [{**TABLE, "state": state.value, "dropped_at": None, "not_written": []}]})["tables"]
        for state in (TableState.BLOCKED, TableState.LIVE)
    ]
    assert lines == [
        ["shop.public.t: blocked (no key: log only) at 1:0/1:0, log 2, f"],
        ["shop.public.t: live at 1:0/1:0, log 2, f"],
    ]


def test_a_dropped_table_is_listed_with_its_time_or_left_out() -> None:
    tables = [
        {**TABLE, "state": state.value, "dropped_at": at, "not_written": []}
        for state, at in (
            (TableState.DROPPED, "2026-11-30T01:00:00Z"),
            (TableState.DROPPED, None),
            (TableState.LIVE, None),
        )
    ]
    assert list_tree({"tables": tables})["tables"] == [
        "shop.public.t: dropped since 2026-11-30T01:00:00Z at 1:0/1:0, log 2, f",
        "shop.public.t: dropped at 1:0/1:0, log 2, f",
        "shop.public.t: live at 1:0/1:0, log 2, f",
    ]
    assert without_dropped({"lake": "l", "tables": tables}) == {"lake": "l", "tables": tables[2:]}
