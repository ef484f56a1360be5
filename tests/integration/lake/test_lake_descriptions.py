"""What the Delta tables of a lake state about their source: properties, position, types and comments."""

from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.lakes.lakes import CAPTURE, IDENTITY, batch, log_rows, position_after, replica_rows
from tests.support.lakes.scripted_table import DATABASE, ScriptedTable
from tidemark.model.change import CopyBoundary
from tidemark.model.relation import ReplicaIdentity
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.sinks import table_writes
from tidemark.pipeline.sinks.lake import Lake

pytestmark = pytest.mark.feature("L13")
FOLDER = "shop/public/Orders"
COMMENTS = ((0, "all orders"), (2, "as written"))


def feed(root: Path, table: ScriptedTable) -> None:
    Lake(str(root), IDENTITY, shape_of, constants_of, {DATABASE: "shop"}).apply(batch(table.delivered()))
    assert len(log_rows(root, FOLDER)) == table.changes


def tables(root: Path) -> list[DeltaTable]:
    return [DeltaTable(str(root / FOLDER / name)) for name in ("log", "replica")]


def comments(table: DeltaTable) -> tuple[str | None, str | None]:
    """Return the description of a table, and the comment of its column `note`."""
    (note,) = (field for field in table.schema().fields if field.name == "note")
    return table.metadata().description, note.metadata.get("comment")


def copied(comments: tuple[tuple[int, str], ...] | None, generation: int, table: ScriptedTable) -> None:
    """Copy one row, between boundaries with `comments`."""
    table.commit()
    row = {**dict.fromkeys(column.number for column in table.relation.live_columns), 1: generation}
    table.copy(generation, [row])
    for at, item in enumerate(table.items):
        if isinstance(item, CopyBoundary) and item.begin and item.generation == generation:
            table.items[at] = replace(item, comments=comments)


def test_properties_name_the_source_and_each_commit_its_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ScriptedTable()
    table.insert({1: 1, 2: "a", 3: None})
    feed(tmp_path, table)
    for delta in tables(tmp_path):
        properties = delta.metadata().configuration
        assert properties["tidemark.capture"] == CAPTURE
        assert properties["tidemark.source"] == f"{IDENTITY.system_identifier}/shop/public.Orders"
        assert delta.history(1)[0]["tidemark.position"] == str(position_after(table.items[-1]))
    monkeypatch.setattr(table_writes, "EXPIRE_EVERY", 1)
    table.cut()
    table.relation = replace(table.relation, name="renamed")
    table.commit()
    table.insert({1: 2, 2: "b", 3: None})
    feed(tmp_path, table)
    for delta in tables(tmp_path):
        assert delta.metadata().configuration["tidemark.source"].endswith("/shop/public.renamed")


def test_comments_stay_through_changes_of_columns_and_until_a_copy_brings_others(tmp_path: Path) -> None:
    table = ScriptedTable()
    copied(COMMENTS, 1, table)
    feed(tmp_path, table)
    assert [comments(delta) for delta in tables(tmp_path)] == [("all orders", "as written")] * 2
    table.commit()
    table.add_column("more", "constant")  # rewrites the replica
    table.rewrite(3, "int4", {(1,): 5})
    table.commit()
    copied(None, 2, table)  # a copy that begins at a rewind reads no comments
    feed(tmp_path, table)
    assert [comments(delta) for delta in tables(tmp_path)] == [("all orders", "as written")] * 2
    copied((), 3, table)
    feed(tmp_path, table)
    assert [comments(delta) for delta in tables(tmp_path)] == [("", ""), ("", None)]
    assert replica_rows(tmp_path, FOLDER) == table.expected()


def test_rows_of_a_table_without_a_key_fit_after_a_change_of_a_declared_type(tmp_path: Path) -> None:
    """NB: delta-rs refuses to append rows with other metadata of a column."""
    table = ScriptedTable(identity=ReplicaIdentity.DEFAULT, key=())
    table.insert({1: 1, 2: "a", 3: None})
    feed(tmp_path, table)
    table.commit()
    columns = table.relation.columns
    assert columns[1].type is not None
    varying = replace(columns[1].type, display_name="character varying")
    table.alter((columns[0], replace(columns[1], type=varying), columns[2]))
    table.insert({1: 2, 2: "b", 3: None})
    feed(tmp_path, table)
    (unkeyed,) = tmp_path.glob(f"{FOLDER}/replica-unkeyed")
    delta = DeltaTable(str(unkeyed))
    assert delta.to_pyarrow_table().num_rows == 2
    assert delta.schema().fields[1].metadata["tidemark.type"] == "character varying"
