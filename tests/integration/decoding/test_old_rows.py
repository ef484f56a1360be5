"""The old row in a change, on a real server: by replica identity, and by the storage of TOASTed values."""

from collections.abc import Iterator

import pytest

from tests.support.lakes.group_collector import GroupCollector
from tests.support.processes.captures import change_log
from tests.support.servers.postgres import Cluster, sql
from tidemark.model.change import BeforeKind, GroupItem

Reported = tuple[object, object, object]  # op, kind of the before image, and the old row
NONE, KEY, FULL = (kind.value for kind in (BeforeKind.NONE, BeforeKind.KEY, BeforeKind.FULL))
STEPS = (
    "INSERT INTO {0} VALUES (1, 10, 'a')",
    "UPDATE {0} SET note = 'b'",
    "UPDATE {0} SET id = 2",
    "UPDATE {0} SET code = 20",
    "DELETE FROM {0}",
)
PLAIN = "CREATE TABLE {0} (id int, code int NOT NULL, note text)"
KEYED = f"{PLAIN}; ALTER TABLE {{0}} ADD PRIMARY KEY (id)"
UNKNOWN: list[Reported] = [("i", NONE, None), *[("u", NONE, None)] * 3, ("d", NONE, None)]


def row(number: int | None = None, code: int | None = None, note: str | None = None) -> dict[str, object]:
    return {"id": number, "code": code, "note": note}


IDENTITIES: dict[str, tuple[str, list[Reported]]] = {
    "by_key": (
        KEYED,
        [("i", NONE, None), ("u", NONE, None), ("u", KEY, row(1)), ("u", NONE, None), ("d", KEY, row(2))],
    ),
    "by_index": (
        f"{KEYED}; CREATE UNIQUE INDEX code ON {{0}} (code); ALTER TABLE {{0}} REPLICA IDENTITY USING INDEX code",
        [
            *(("i", NONE, None), ("u", NONE, None), ("u", NONE, None)),
            ("u", KEY, row(code=10)),
            ("d", KEY, row(code=20)),
        ],
    ),
    "by_all": (
        f"{KEYED}; ALTER TABLE {{0}} REPLICA IDENTITY FULL",
        [
            ("i", NONE, None),
            ("u", FULL, row(1, 10, "a")),
            ("u", FULL, row(1, 10, "b")),
            ("u", FULL, row(2, 10, "b")),
            ("d", FULL, row(2, 20, "b")),
        ],
    ),
    "by_nothing": (f"{KEYED}; ALTER TABLE {{0}} REPLICA IDENTITY NOTHING", UNKNOWN),
    "keyless": (PLAIN, UNKNOWN),
}


@pytest.fixture
def ours(cluster: Cluster, database: str) -> Iterator[GroupCollector]:
    made = GroupCollector(cluster, [database])
    try:
        made.settle()
        yield made
    finally:
        made.changes.close()


def items(ours: GroupCollector) -> list[GroupItem]:
    return [item for group in ours.catch_up() for item in group.items]


@pytest.mark.feature("P06")
@pytest.mark.parametrize("in_one_transaction", [False, True])  # the decoder reads rows after DDL one by one
def test_known_columns_of_an_old_row_are_those_of_its_replica_identity(
    cluster: Cluster, database: str, ours: GroupCollector, *, in_one_transaction: bool
) -> None:
    with cluster.connect(database, autocommit=not in_one_transaction) as session:
        for name, (made, _) in IDENTITIES.items():
            for step in (made, *STEPS):
                sql(session, step.format(name))
            session.commit()
    came = items(ours)
    for name, (_, expected) in IDENTITIES.items():
        reported = [(found["_op"], found["_before_kind"], found["_before"]) for found in change_log(came, name)]
        assert reported == expected, name


@pytest.mark.feature("P05")
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_a_toasted_value_is_complete_where_wal_has_it_and_is_marked_where_not(
    cluster: Cluster, database: str, ours: GroupCollector, identity: str
) -> None:
    first, second = "first " * 3000, "second " * 3000
    with cluster.connect(database) as session:
        sql(session, "CREATE TABLE kept (id int PRIMARY KEY, note text, doc text)")
        sql(session, "ALTER TABLE kept ALTER doc SET STORAGE EXTERNAL")
        sql(session, f"ALTER TABLE kept REPLICA IDENTITY {identity}")
        sql(session, f"INSERT INTO kept VALUES (1, 'a', '{first}')")
        sql(session, "UPDATE kept SET note = 'b'")
        sql(session, "UPDATE kept SET doc = NULL")
        sql(session, f"UPDATE kept SET doc = '{second}'")
        sql(session, "UPDATE kept SET id = 2")
    is_known = identity == "FULL"  # by the old row
    of_doc = None if is_known else bytes([0b100])
    rows = change_log(items(ours), "kept")
    assert [(found["_unchanged"], found["_after"]) for found in rows] == [
        (None, {"id": 1, "note": "a", "doc": first}),
        (of_doc, {"id": 1, "note": "b", "doc": first if is_known else None}),
        (None, {"id": 1, "note": "b", "doc": None}),
        (None, {"id": 1, "note": "b", "doc": second}),
        (of_doc, {"id": 2, "note": "b", "doc": second if is_known else None}),
    ]
    if identity == "FULL":  # the server reads it back for the old row
        assert [found["_before"] for found in rows[1:]] == [
            {"id": 1, "note": "a", "doc": first},
            {"id": 1, "note": "b", "doc": first},
            {"id": 1, "note": "b", "doc": None},
            {"id": 1, "note": "b", "doc": second},
        ]


@pytest.mark.parametrize("in_one_transaction", [False, True])
def test_an_update_that_leaves_a_toasted_key_has_the_key_in_both_rows(
    cluster: Cluster, database: str, ours: GroupCollector, *, in_one_transaction: bool
) -> None:
    key, other = "k" * 2600, "o" * 2600  # an index entry has up to 2,704 bytes
    with cluster.connect(database, autocommit=not in_one_transaction) as session:
        sql(session, "CREATE TABLE keyed (name text PRIMARY KEY, number int, doc text)")
        sql(session, "ALTER TABLE keyed ALTER name SET STORAGE EXTERNAL, ALTER doc SET STORAGE EXTERNAL")
        sql(session, f"INSERT INTO keyed VALUES ('{key}', 1, '{'d' * 9000}')")
        sql(session, "UPDATE keyed SET number = 2")
        sql(session, f"UPDATE keyed SET name = '{other}'")
        session.commit()
    rows = change_log(items(ours), "keyed")[1:]
    of_doc = bytes([0b100])
    assert [(row["_before_kind"], row["_before"], row["_after"], row["_unchanged"]) for row in rows] == [
        (KEY, {"name": key, "number": None, "doc": None}, {"name": key, "number": 2, "doc": None}, of_doc),
        (KEY, {"name": key, "number": None, "doc": None}, {"name": other, "number": 2, "doc": None}, of_doc),
    ]
