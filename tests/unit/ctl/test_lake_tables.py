"""The tables of a lake as text."""

from tidemark_ctl.views.lake_tables import list_tree
from tidemark_ctl.views.render import Tree

from tidemark.pipeline.lake.positions import TableState

TABLE: dict[str, Tree] = {"database": "shop", "table": "public.t", "position": "1:0/1:0", "log": 2, "folder": "f"}


def test_a_table_without_a_replica_is_listed_with_the_reason() -> None:
    lines = [
        list_tree({"tables": [{**TABLE, "state": state.value, "not_written": []}]})["tables"]
        for state in (TableState.BLOCKED, TableState.LIVE)
    ]
    assert lines == [
        ["shop.public.t: blocked (no key: log only) at 1:0/1:0, log 2, f"],
        ["shop.public.t: live at 1:0/1:0, log 2, f"],
    ]
