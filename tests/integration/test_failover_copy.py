"""A first copy in progress while the roles change."""

import threading
from pathlib import Path

import pyarrow as pa

from tests.support.failover import archiving_node, paired
from tidemark.model.change import ChangeBatch, CopyBoundary, GroupItem
from tidemark.model.mode import Stage

ROWS = 150_000


def table_of(items: list[GroupItem], name: str) -> dict[int, str]:
    """Return what a table holds after these items, each generation of its copy from nothing."""
    table: dict[int, str] = {}
    for item in items:
        if isinstance(item, CopyBoundary) and item.relation.name == name and item.begin:
            table.clear()
        if not isinstance(item, ChangeBatch) or item.relation.name != name:
            continue
        for row in pa.RecordBatch.to_pylist(item.rows):
            after = row["_after"]
            if row["_op"] in ("i", "c"):
                assert after["id"] not in table, row
            if after is None:
                del table[row["_before"]["id"]]
            else:
                table[after["id"]] = after["note"]
    return table


def test_a_copy_that_a_fail_over_breaks_off_is_made_anew_by_the_archiver(tmp_path: Path) -> None:
    with archiving_node() as node:
        node.node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        node.node.sql(f"INSERT INTO account SELECT n, repeat('x', 100) FROM generate_series(1, {ROWS}) n")
        stopping = threading.Event()

        def write() -> None:
            with node.node.connect("postgres") as session:
                number = 0
                while not stopping.wait(0.005):
                    number += 1
                    key = number * 37 % ROWS + 1
                    session.execute("UPDATE account SET note = %s WHERE id = %s", (f"u{number}", key))
                    session.execute("INSERT INTO account VALUES (%s, 'new')", (ROWS + number,))

        thread = threading.Thread(target=write)
        with paired(node, tmp_path, copy=True) as pair:
            thread.start()
            try:
                pair.wait_for(lambda: bool(pair.sidecar.status().get("copying")) and bool(pair.delivered()), "copying")
                pair.sidecar.kill()
                pair.wait_for_stage(Stage.ARCHIVE)
                pair.wait_for(lambda: pair.archiver.status().get("role") == "active", "the archiver")
                assert pair.archiver.status()["copying"]
                pair.sidecar.start()
                pair.wait_for_stage(Stage.REALTIME)
            finally:
                stopping.set()
                thread.join()
            held = table_of(pair.catch_up(), "account")
            assert held == dict(node.node.sql("SELECT id, note FROM account"))
