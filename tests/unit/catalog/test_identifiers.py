import pytest

from tidemark.decode.types.identifiers import quote_identifier, type_display_name
from tidemark.model.lsn import Oid


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        ("plain", "plain"),
        ("_1a", "_1a"),
        ("1a", '"1a"'),
        ("Upper", '"Upper"'),
        ("é", '"é"'),
        ("a b", '"a b"'),
        ('a"b', '"a""b"'),
        ("", '""'),
        ("table", '"table"'),
        ("char", '"char"'),
        ("name", "name"),
        ("a$", '"a$"'),
    ],
)
def test_identifiers_are_quoted_as_the_server_does(name: str, quoted: str) -> None:
    assert quote_identifier(name, 15) == quoted


@pytest.mark.parametrize(
    ("name", "since"), [("json_array", 16), ("system_user", 16), ("json", 17), ("merge_action", 17)]
)
def test_each_major_has_its_own_key_words(name: str, since: int) -> None:
    assert [quote_identifier(name, major) == name for major in range(14, 19)] == [
        major < since for major in range(14, 19)
    ]


def test_a_type_of_public_behind_one_of_pg_catalog_is_qualified() -> None:
    assert type_display_name(Oid(99999), "public", "text", 15, hidden=True) == "public.text"
    assert type_display_name(Oid(99999), "public", "mood", 15, hidden=False) == "mood"
    assert type_display_name(Oid(99999), "My S", "Mood", 15, hidden=False) == '"My S"."Mood"'
    assert type_display_name(Oid(18), "pg_catalog", "char", 15, hidden=False) == '"char"'
    assert type_display_name(Oid(114), "pg_catalog", "json", 17, hidden=False) == "json"
