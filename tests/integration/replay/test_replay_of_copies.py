"""A replay to the end of a lake whose last items are those of a copy, which lies above the position of the lake."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.replay.test_unselected import CREATE, READER, Unselected, capturing
from tests.support.lakes.lakes import feed_by_hand
from tests.support.servers.postgres import Cluster
from tidemark.io.readers.outbox import OutboxReader
from tidemark.model.position import NO_SEQUENCE
from tidemark.pipeline.lake.report import OpenedLake
from tidemark.pipeline.replay.moment import EndOfLake
from tidemark.wire.values import ValueKind

pytestmark = pytest.mark.feature("N17")


@pytest.fixture
def copied(cluster: Cluster, database: str, tmp_path: Path) -> Iterator[Unselected]:
    """A capture with a copy; the lake has the first copies of its tables, and no later change."""
    for statement in (
        CREATE,
        "INSERT INTO account VALUES (1, 'first'), (2, 'second')",
        "CREATE TABLE keyless (id int, note text)",
        "ALTER TABLE keyless REPLICA IDENTITY FULL",
        "INSERT INTO keyless VALUES (1, 'same'), (1, 'same')",
        "CREATE TABLE empty (id int PRIMARY KEY, note text)",
    ):
        cluster.sql(statement, database)
    with capturing(cluster, database, tmp_path, copy=True) as found:
        land_copies(found)
        yield found


def land_copies(copied: Unselected) -> None:
    """Write everything into the lake up to the end of the last copy."""
    copied.items()
    with OutboxReader.open(copied.sidecar.folder) as outbox:
        kinds = [(one.header.sequence, one.header.kind) for one in outbox.read(NO_SEQUENCE, outbox.head())]
    end = max(sequence for sequence, kind in kinds if kind is ValueKind.COPY)
    feed_by_hand(copied.sidecar.folder, copied.lake, READER, end=end)


def is_above_lake(copied: Unselected, name: str) -> bool:
    return copied.table(name).position > OpenedLake(str(copied.lake)).positions.applied.position


def at_source(copied: Unselected, name: str) -> list[object]:
    sidecar = copied.sidecar
    return [note for (note,) in sidecar.cluster.sql(f"SELECT note FROM {name} ORDER BY id, note", sidecar.database)]


def sorted_notes(copied: Unselected, name: str) -> list[object]:
    return sorted(copied.notes(EndOfLake(), name), key=str)


def test_the_first_copies_are_the_contents_before_a_later_change_arrives(copied: Unselected) -> None:
    for name in ("account", "keyless", "empty"):
        assert is_above_lake(copied, name)
        assert sorted_notes(copied, name) == at_source(copied, name)


def test_a_new_copy_replaces_the_rows_before_a_later_change_arrives(copied: Unselected) -> None:
    copied.sql("DELETE FROM keyless WHERE ctid = '(0,1)'")
    copied.sql("INSERT INTO keyless VALUES (2, 'third')")
    copied.land()
    copied.recopy("public.keyless")
    land_copies(copied)
    assert is_above_lake(copied, "keyless")
    assert sorted_notes(copied, "keyless") == at_source(copied, "keyless") == ["same", "third"]
