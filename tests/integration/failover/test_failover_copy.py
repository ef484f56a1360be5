"""A first copy in progress during a hand-over."""

import threading
from pathlib import Path

import pyarrow as pa

from tests.support.processes.captures import OnDemandReader
from tests.support.processes.failover import archiving_node, paired
from tidemark.io.readers.outbox import OutboxReader
from tidemark.model.change import ChangeBatch, CopyBoundary, GroupItem
from tidemark.model.mode import Stage

ROWS = 20_000
OUTBOX_BYTES = 1 << 20  # the rows have more than twice that
SMALL = {"TIDEMARK_DELIVER__GROUP_BYTES_MAX": str(1 << 18)}


def table_of(items: list[GroupItem], name: str) -> dict[int, str]:
    """Return the rows of a table after these items; each generation of its copy starts from an empty table."""
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


def test_a_copy_that_a_fail_over_breaks_off_is_recreated_by_the_archiver(tmp_path: Path) -> None:
    """No reader runs until the archiver copies, and the outbox is too small for the copy: neither can finish."""
    with archiving_node() as node:
        node.node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        random_note = "md5(n::text) || md5('a' || n) || md5('b' || n) || md5('c' || n)"
        node.node.sql(f"INSERT INTO account SELECT n, {random_note} FROM generate_series(1, {ROWS}) n")
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
        with (
            paired(node, tmp_path, copy=True, options=SMALL, bytes_max=OUTBOX_BYTES) as pair,
            OutboxReader.open(pair.sidecar.folder) as outbox,
        ):
            on_demand = OnDemandReader(outbox)
            thread.start()
            try:
                pair.sidecar.wait_for_event("the outbox or its disk is full, delivery waits")
                pair.sidecar.kill()
                pair.wait_for_stage(Stage.ARCHIVE)
                pair.wait_for(lambda: bool(pair.archiver.status().get("copying")), "the archiver's copy")
                pair.sidecar.start()
                pair.wait_for(lambda: bool(on_demand.read()) and pair.stage is Stage.REALTIME, "the way back")
            finally:
                stopping.set()
                thread.join()
            items = on_demand.catch_up(pair.sidecar)
            boundaries = [item for item in items if isinstance(item, CopyBoundary)]
            begun = [each.generation for each in boundaries if each.begin]
            assert begun[0] < begun[-1], "cancelled, and made again"
            assert [each.generation for each in boundaries if not each.begin] == begun[-1:]
            assert table_of(items, "account") == dict(node.node.sql("SELECT id, note FROM account"))
