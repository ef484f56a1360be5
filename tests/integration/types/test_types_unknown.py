"""An unknown type, on a real server: its rows are delivered, with its bytes and its name."""

import pytest

from tests.support.lakes.group_collector import GroupCollector
from tests.support.servers.postgres import Cluster
from tidemark.model.change import ChangeBatch

MUTE = """
CREATE SCHEMA odd;
CREATE TYPE odd.mute;
CREATE FUNCTION odd.mute_in(cstring) RETURNS odd.mute LANGUAGE internal IMMUTABLE STRICT AS 'textin';
CREATE FUNCTION odd.mute_out(odd.mute) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
CREATE TYPE odd.mute (INPUT = odd.mute_in, OUTPUT = odd.mute_out, LIKE = text);
CREATE TABLE odd.t (id int, word odd.mute, words odd.mute[], rights aclitem)
"""


@pytest.mark.feature("P12")
def test_values_of_unknown_types_are_emitted_as_bytes_with_the_types_name(cluster: Cluster, database: str) -> None:
    ours = GroupCollector(cluster, [database])
    ours.settle()
    cluster.sql(MUTE, database)
    cluster.sql("INSERT INTO odd.t VALUES (1, 'said', '{a}', NULL), (2, NULL, NULL, NULL)", database)
    (batch,) = (item for group in ours.catch_up() for item in group.items if isinstance(item, ChangeBatch))
    ours.changes.close()
    types = [column.type for column in batch.relation.columns]
    assert [kind.display_name for kind in types if kind is not None] == ["integer", "odd.mute", "odd.mute[]", "aclitem"]
    first, second = batch.rows.column("_after").to_pylist()
    assert (first["id"], first["word"]) == (1, b"said")
    assert first["words"].endswith(b"\x14\0\0\0a\0\0\0")  # an element with its length before it, as arrays have it
    assert second == {"id": 2, "word": None, "words": None, "rights": None}
