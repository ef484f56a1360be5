"""The consumer of the example package: rows of a source table under the names that a `Route` gave them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forged.groups import DATABASE, batch, position, relation
from tests.support.plugins.daemons import file_rows
from tests.support.plugins.examples import SqliteConsumer
from tests.unit.plugins.test_group_transforms import EPOCH, group_of, transforms_of
from tidemark import CopyBoundary, PartitionChange, PartitionEvent, Route, Truncation
from tidemark.io.host.clock import SystemClock
from tidemark.model.change import GroupItem
from tidemark.model.lsn import Lsn, SystemIdentifier, Xid
from tidemark.model.position import Partition
from tidemark.model.relation import Relation
from tidemark.runtime.plugins.plugin_consumer import PluginConsumer

OWN, OTHER = relation("account"), relation("client", oid=17000)
BY_CONTENT = Route("routed_{value}", by="note")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "changes.db"


@pytest.fixture
def consumer(file: Path) -> Iterator[PluginConsumer]:
    """The consumer behind a transform that divides the rows of two tables by their content."""
    made = PluginConsumer(SqliteConsumer(file), transforms_of(BY_CONTENT), None, SystemClock())
    made.on_assigned(Partition(SystemIdentifier(7)), EPOCH, group_of().last)
    yield made
    made.stop()


def deliver(consumer: PluginConsumer, *items: GroupItem) -> None:
    assert consumer.on_events(iter([group_of(*items)])) is True


def copy_begins(of: Relation, generation: int) -> CopyBoundary:
    return CopyBoundary(position(90), DATABASE, of, generation, begin=True, snapshot="")


def rows(file: Path, table: str) -> list[str | None]:
    return [row.after for row in file_rows(file, table)]


def test_a_copy_that_begins_again_replaces_the_rows_of_its_source_under_all_names(
    consumer: PluginConsumer, file: Path
) -> None:
    deliver(consumer, copy_begins(OTHER, 1), batch(100, [7], note="a", of=OTHER))
    deliver(consumer, copy_begins(OWN, 1), batch(110, [1], note="a", of=OWN), batch(111, [2], note="b", of=OWN))
    assert rows(file, "routed_a") == ['{"id": 7, "note": "a"}', '{"id": 1, "note": "a"}']
    deliver(consumer, copy_begins(OWN, 2), batch(105, [1], note="a", of=OWN))
    assert rows(file, "routed_a") == ['{"id": 7, "note": "a"}', '{"id": 1, "note": "a"}']
    assert rows(file, "routed_b") == []


def test_rows_of_several_sources_under_one_name_are_compared_with_the_position_of_their_own(
    consumer: PluginConsumer, file: Path
) -> None:
    deliver(consumer, batch(200, [1], note="a", of=OWN))
    deliver(consumer, copy_begins(OTHER, 1), batch(150, [7], note="a", of=OTHER))
    deliver(consumer, batch(200, [1], note="a", of=OWN), batch(150, [7], note="a", of=OTHER))  # again, after a kill
    assert rows(file, "routed_a") == ['{"id": 1, "note": "a"}', '{"id": 7, "note": "a"}']


def test_a_truncation_is_written_under_each_name_of_its_source(consumer: PluginConsumer, file: Path) -> None:
    deliver(consumer, batch(100, [1], note="a", of=OWN), batch(101, [2], note="b", of=OWN))
    deliver(
        consumer, Truncation(position(120), Lsn(119), DATABASE, Xid(700), OWN, cascade=False, restart_identity=False)
    )
    assert [[row.op for row in file_rows(file, f"routed_{name}")] for name in "ab"] == [["i", "t"], ["i", "t"]]
    deliver(
        consumer, Truncation(position(130), Lsn(129), DATABASE, Xid(701), OTHER, cascade=False, restart_identity=False)
    )
    assert [row.op for row in file_rows(file, "public.client")] == ["t"]


def test_a_partition_that_is_emptied_or_leaves_is_named_by_its_tableoid(consumer: PluginConsumer, file: Path) -> None:
    part = relation("part", oid=18000)
    emptied = Truncation(
        position(120), Lsn(119), DATABASE, Xid(700), OWN, cascade=False, restart_identity=False, partition=part.oid
    )
    deliver(consumer, emptied)
    for at, change in enumerate(PartitionChange):
        deliver(consumer, PartitionEvent(position(130 + at), Lsn(129), DATABASE, Xid(701), change, OWN, part))
    found = [(row.op, row.before) for row in file_rows(file, "public.account")]
    assert found == [("t", '{"tableoid": 18000}')] * 3  # TRUNCATE, DETACH, DROP
